#!/bin/bash
set -e
cd /app
join() { awk '/^ / { sub(/^ +/, ""); held = held " " $0; next } NR > 1 { print held } { held = $0 } END { print held }' "$1"; }
{
  join cron.log | while IFS= read -r line; do printf '%s000\tcron %s\n' "${line%% *}" "${line#* }"; done
  join db.log | while IFS= read -r line; do
    printf '%s\tdb %s\n' "$(date -u -d "${line%% *}" +%s%3N)" "${line#* }"
  done
  join web.log | while IFS= read -r line; do
    time=${line%%]*} time=${time#[}
    time=$(echo "$time" | sed 's|/| |g; s/:/ /')
    printf '%s000\tweb %s\n' "$(date -u -d "$time" +%s)" "${line#*] }"
  done
} | sort -s -t $'\t' -k1,1n | while IFS=$'\t' read -r time rest; do
  printf '%s %s\n' "$(date -u -d "@$((time / 1000))" '+%Y-%m-%d %H:%M:%S')" "$rest"
done > all.log
