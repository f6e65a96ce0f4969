#!/bin/bash
set -e
cd /app
tr -cs 'A-Za-z' '\n' < story.txt | tr A-Z a-z | grep . | sort | uniq -c | sort -k1,1nr -k2,2 | head -10 |
  awk '{ print $1, $2 }' > top.txt
