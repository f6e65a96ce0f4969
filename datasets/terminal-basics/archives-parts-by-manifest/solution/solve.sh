#!/bin/bash
set -e
cd /app/parts
declare -A known
for file in *; do
  sum=$(sha256sum "$file" | cut -d' ' -f1)
  if [ -n "${known[$sum]}" ] || ! grep -q "^[0-9]* $sum$" ../manifest.txt; then rm "$file"; else known[$sum]=$file; fi
done
grep -v total ../manifest.txt | sort -n | while read -r number sum; do cat "${known[$sum]}"; done > ../whole.tar.gz
mkdir ../out
tar -xzf ../whole.tar.gz -C ../out
