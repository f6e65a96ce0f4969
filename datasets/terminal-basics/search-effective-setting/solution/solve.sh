#!/bin/bash
set -e
cd /app/conf.d
LC_ALL=C; export LC_ALL
awk -F= '/^[ \t]*[#;]/ { next } { n = $1; gsub(/[ \t]/, "", n) } n == "max_connections" { v = $2; gsub(/[ \t]/, "", v); a = FILENAME ":" FNR ":" v }
  END { print a }' *.conf > /app/answer.txt
