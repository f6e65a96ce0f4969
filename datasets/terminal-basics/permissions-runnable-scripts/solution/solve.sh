#!/bin/bash
set -e
find /app/tools -type f | while IFS= read -r file; do
  if [ "$(head -c 2 "$file")" = '#!' ]; then chmod 755 "$file"; else chmod 644 "$file"; fi
done
