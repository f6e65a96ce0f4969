#!/bin/bash
set -e
cd /app
mkdir restored
for archive in backups/*.tar.gz; do
  if ! { gzip -t "$archive" && tar -tzf "$archive"; } > /dev/null 2>&1; then
    basename "$archive" >> damaged.txt
    continue
  fi
  tar -xzf "$archive" -C restored
  if [ -f restored/DELETED ]; then
    while IFS= read -r path; do rm -f "restored/$path"; done < restored/DELETED
    rm restored/DELETED
  fi
done
