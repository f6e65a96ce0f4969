#!/bin/bash
set -e
cd /app
{
  echo path,requests,mean,max
  awk '$4 == 200 { split($3, p, "?"); n[p[1]]++; s[p[1]] += $5; if ($5 > m[p[1]]) m[p[1]] = $5 }
    END { for (k in n) if (s[k] / n[k] > 250) printf "%.6f,%s,%d,%d,%d\n", s[k] / n[k], k, n[k], int(s[k] / n[k] + 0.5), m[k] }' requests.log |
    sort -t, -k1,1nr -k2,2 | cut -d, -f2-
} > slow.csv
