#!/bin/bash
set -e
awk '{ n[$1] += $3 == "ERROR" } END { for (d in n) print d, n[d] }' /app/app.log | sort > /app/errors.txt
