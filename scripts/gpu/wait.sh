#!/usr/bin/env bash
# Waits for a drive in the background, then shows the end of its log and copies its results:
#   scripts/gpu/wait.sh SECONDS [DIRECTORY] [PATTERN]
# Returns when drive.log says ALL DONE or STOPPED, or has a line that matches PATTERN, or after SECONDS (status 3).
# DIRECTORY gets results.tar.gz.
set -uo pipefail
CALLER="$PWD"
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
[[ "${1:-}" =~ ^[0-9]+$ ]] || fail "usage: scripts/gpu/wait.sh SECONDS [DIRECTORY] [PATTERN]"
[ -f "$OUT/drive.log" ] || fail "there is no $OUT/drive.log; start scripts/gpu/drive.sh --background, with the same GPU_LABEL"
status=3
for _ in $(seq "$1"); do
  if grep -qE "ALL DONE|STOPPED${3:+|$3}" "$OUT/drive.log"; then status=0 && break; fi
  sleep 1
done
cut -c1-300 "$OUT/drive.log" | tail -n 60
if [ "$status" = 3 ]; then tail -n 3 "$(ls -t "$OUT"/*.log | grep -v drive.log | head -n 1)" | cut -c1-300; fi
if [ -n "${2:-}" ]; then
  cd "$CALLER" && mkdir -p "$2"
  if [ -f "$OUT.tar.gz" ]; then cp "$OUT.tar.gz" "$2/results.tar.gz"; fi
  tail -n 400 "$OUT/drive.log" >"$2/drive.log"
fi
exit "$status"
