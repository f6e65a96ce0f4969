#!/bin/bash
set -e
find /app/project -type f | sed 's/.*\.//' | sort | uniq -c | awk '{ print $2, $1 }' > /app/types.txt
