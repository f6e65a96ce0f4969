#!/bin/bash
. /tests/lib.sh

readable /app
cp /tests/worker.sh "$work/worker.sh" && chmod 755 "$work" "$work/worker.sh"
log=/app/run/supervise.log
fresh() { rm -rf /app/run && mkdir -m 777 /app/run && open_folder "$1"; }
ends() { run 20 bash /app/supervise.sh bash "$work/worker.sh" "$folder" "${@:2}" > /dev/null 2>&1; [ $? = "$1" ]; }

fresh third
check "until it succeeds" ends 0 third 'a  b' '*' || finish
check "three runs" lines "$folder/runs" '2 a  b *' '2 a  b *' '2 a  b *'
check "what it logs" lines "$log" 'restart 1' 'restart 2' 'done'
fresh fail
check "gives up" ends 1 fail
check "after six runs" [ "$(wc -l < "$folder/runs" 2> /dev/null)" = 6 ]
check "and says so" lines "$log" 'restart 1' 'restart 2' 'restart 3' 'restart 4' 'restart 5' 'gave up'
fresh wait
(
  as_nobody bash /app/supervise.sh bash "$work/worker.sh" "$folder" wait > /dev/null 2>&1 < /dev/null
  echo $? > "$work/status"
) &
for i in $(seq 100); do [ -s "$folder/pid" ] && break; sleep 0.1; done
check "it runs" test -s "$folder/pid" || finish
kill -TERM $(pgrep -u nobody -f '^bash /app/supervise.sh') 2> /dev/null
for i in $(seq 100); do [ -s "$work/status" ] && break; sleep 0.1; done
check "its exit status" lines "$work/status" 143
check "the worker had its time" [ "$(tail -n 1 "$folder/runs" 2> /dev/null)" = term ]
check "was not started again" [ "$(wc -l < "$folder/runs" 2> /dev/null)" = 2 ]
check "stopped" lines "$log" stopped
check "nothing is left" not pgrep -u nobody
finish
