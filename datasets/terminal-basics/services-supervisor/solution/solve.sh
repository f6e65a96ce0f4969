#!/bin/bash
set -e
cat > /app/supervise.sh << 'END'
#!/bin/bash
log=/app/run/supervise.log
child='' ended=''
stop() {
  ended=1
  [ -n "$child" ] && kill -TERM "$child" 2> /dev/null
}
trap stop TERM
restarts=0
while :; do
  "$@" &
  child=$!
  wait "$child"
  status=$?
  if [ -n "$ended" ]; then
    wait "$child"
    echo stopped >> "$log"
    exit 143
  fi
  if [ "$status" = 0 ]; then
    echo 'done' >> "$log"
    exit 0
  fi
  if [ "$restarts" = 5 ]; then
    echo 'gave up' >> "$log"
    exit 1
  fi
  restarts=$((restarts + 1))
  echo "restart $restarts" >> "$log"
done
END
