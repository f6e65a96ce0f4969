#!/bin/bash
set -e
cd /app/links
find . -type l ! -exec test -e {} \; -printf '%P\n' | sort > /app/broken.txt
xargs -d '\n' rm < /app/broken.txt
