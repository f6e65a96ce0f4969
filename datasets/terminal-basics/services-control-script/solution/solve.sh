#!/bin/bash
set -e
cat > /app/ctl.sh << 'END'
#!/bin/bash
file=/app/run/worker.pid
running() { pid=$(cat "$file" 2> /dev/null) && [ -n "$pid" ] && kill -0 "$pid" 2> /dev/null; }
case $1 in
  start)
    if running; then echo 'already running'; exit; fi
    setsid bash /app/worker.sh > /dev/null 2>&1 < /dev/null &
    echo $! > "$file"
    echo started
    ;;
  status)
    if running; then echo running; else echo stopped; exit 3; fi
    ;;
  stop)
    if running; then
      kill "$pid"
      while kill -0 "$pid" 2> /dev/null; do sleep 0.1; done
      echo stopped
    else
      echo 'not running'
    fi
    rm -f "$file"
    ;;
esac
END
