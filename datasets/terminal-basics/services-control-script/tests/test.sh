#!/bin/bash
. /tests/lib.sh

readable /app
guard "worker.sh unchanged" [ "$(cksum < /app/worker.sh)" = "3718238082 245" ]
rm -rf /app/run && mkdir -m 777 /app/run
ctl() { # ctl STATUS SAID ACTION; without `run`: the worker goes on
  timeout "$(within 20)" bash -c "$(declare -f as_nobody); _NOBODY='$_NOBODY'; as_nobody bash /app/ctl.sh $3" > "$work/said" 2> /dev/null < /dev/null
  [ $? = "$1" ] && lines "$work/said" "$2"
}
pid() { cat /app/run/worker.pid 2> /dev/null; }
alive() { [ -n "$1" ] && [ -d "/proc/$1" ]; }
started() { for i in $(seq 100); do [ "$(wc -l < /app/run/worker.log 2> /dev/null)" = "$1" ] && return; sleep 0.1; done; return 1; }
check "not running at first" ctl 3 stopped status || finish
check "start" ctl 0 started start || finish
started 1
check "its number" [ "$(pid)" = "$(cat /app/run/worker.log)" ]
first=$(pid)
check "it goes on" alive "$first"
check "running" ctl 0 running status
check "a second start" ctl 0 'already running' start
check "is the same" [ "$(pid) $(wc -l < /app/run/worker.log)" = "$first 1" ]
check "stop" ctl 0 stopped stop
check "it had its time" [ "$(tail -n 1 /app/run/worker.log)" = bye ]
check "it is gone" not alive "$first"
check "and so is its number" not test -e /app/run/worker.pid
check "a second stop" ctl 0 'not running' stop
echo "$first" > /app/run/worker.pid && chmod 666 /app/run/worker.pid
check "a number left over" ctl 3 stopped status
check "start over it" ctl 0 started start
started 3
check "a new number" [ "$(pid)" = "$(tail -n 1 /app/run/worker.log)" ]
end_all
check "was killed" ctl 3 stopped status
check "stop after that" ctl 0 'not running' stop
check "no number" not test -e /app/run/worker.pid
finish
