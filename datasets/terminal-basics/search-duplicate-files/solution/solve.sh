#!/bin/bash
set -e
cd /app/photos
find . -type f -printf '%P\0' | sort -z | xargs -0 sha256sum |
  awk '{ h = $1; sub(/^[^ ]+  /, ""); p[h] = h in p ? p[h] " = " $0 : $0 } END { for (h in p) print p[h] }' |
  grep ' = ' | sort > /app/duplicates.txt
