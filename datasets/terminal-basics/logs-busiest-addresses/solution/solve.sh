#!/bin/bash
set -e
cut -d' ' -f1 /app/access.log | sort | uniq -c | sort -nr | head -3 | awk '{ print $2, $1 }' > /app/top.txt
