#!/bin/bash
set -e
cd /app/logs
for file in access*; do case $file in *.gz) gzip -dc "$file" ;; *) cat "$file" ;; esac; done |
  sed -nE 's/^[^ ]+ - - \[[^:]*:([0-9]{2}):.*" ([2-5])[0-9]{2} [0-9]+$/\1 \2/p' |
  awk 'NR == 1 { a = b = $1 + 0 } { h = $1 + 0; if (h < a) a = h; if (h > b) b = h; n[h, $2]++ }
    END { print "hour,2xx,3xx,4xx,5xx"; for (h = a; h <= b; h++) printf "%02d,%d,%d,%d,%d\n", h, n[h, 2], n[h, 3], n[h, 4], n[h, 5] }' > /app/table.csv
