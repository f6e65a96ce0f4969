#!/bin/bash
set -e
cat > /app/backup.sh << 'END'
mkdir -p "$2"
n=0
for file in "$1"/*.conf; do
  [ -f "$file" ] || continue
  cp "$file" "$2/${file##*/}.bak"
  n=$((n + 1))
done
echo "$n"
END
