#!/bin/bash
set -e
cd /app
tail -n +2 people.tsv | awk -F'\t' -v OFS=, '{ print $4, $2, $1 }' | sort -t, -k1,1 -k2,2 > by_city.csv
