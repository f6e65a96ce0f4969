#!/bin/bash
set -e
cd /app
{
  echo person,sessions,seconds,longest
  awk '
    function seconds(text) { gsub(/[-T:]/, " ", text); return mktime(text) }
    function close_it(key,   part, long) {
      split(key, part, " "); long = now - since[key]; delete since[key]
      n[part[1]]++; sum[part[1]] += long; if (long > max[part[1]]) max[part[1]] = long
    }
    { now = seconds($1); key = $3 " " $4 }
    $2 == "login" && !(key in since) { since[key] = now }
    $2 == "logout" && key in since { close_it(key) }
    $2 == "restart" { for (key in since) { split(key, at, " "); if (at[2] == $3) close_it(key) } }
    END {
      for (key in since) close_it(key)
      for (person in n) print person "," n[person] "," sum[person] "," max[person] + 0
    }' auth.log | sort -t, -k3,3nr -k1,1
} > sessions.csv
