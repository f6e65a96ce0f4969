#!/bin/bash
set -e
cd /app/site
find . -mindepth 1 ! -type l -perm -o+w ! \( -type d -perm -1000 \) -printf '%P\n' | sort > /app/writable.txt
xargs -d '\n' chmod o-w < /app/writable.txt
