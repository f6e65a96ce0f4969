#!/bin/bash
set -e
cd /app/logs
for file in *; do
  [[ $file =~ ^(.+)-([0-9]{4}-[0-9]{2}-[0-9]{2})\.log(\.gz)?$ ]] || continue
  service=${BASH_REMATCH[1]} day=${BASH_REMATCH[2]} packed=${BASH_REMATCH[3]}
  if [[ $day < 2024-04-01 ]]; then rm "$file"; continue; fi
  if [[ $day < 2024-06-23 && -z $packed ]]; then gzip "$file"; file=$file.gz; fi
  case $file in *.gz) size=$(gzip -dc "$file" | wc -c) ;; *) size=$(wc -c < "$file") ;; esac
  echo "$service $size"
done | awk '{ n[$1]++; s[$1] += $2 } END { for (k in n) print k, n[k], s[k] }' | sort > /app/summary.txt
