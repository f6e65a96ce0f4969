#!/bin/bash
set -e
cd /app
{ echo region,units; tail -n +2 sales.csv | awk -F, '{ s[$1] += $3 } END { for (r in s) print r "," s[r] }' | sort; } > totals.csv
