#!/usr/bin/env bash
# Runs the phases of a file one after another, unattended, and leaves results in one folder and one archive:
#   scripts/gpu/drive.sh [--background] [PHASES]      default: scripts/gpu/phases, which says what a line is
# GPU_OUT (default runs/LABEL-results): drive.log with a line for each phase's start and end, PHASE.log, what phases keep.
# GPU_RESUME=1 continues an earlier drive: phases that are done (GPU_OUT/PHASE.done) are skipped, but for NAME+.
# GPU_OUT.tar.gz is written after every phase, 15 MiB at most. drive.log ends with a line "ALL DONE ..." or "STOPPED ...".
set -uo pipefail
CALLER="$PWD" # env.sh changes to the root
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
MOST_BYTES=$((15 * 1024 * 1024))

background=false
if [ "${1:-}" = --background ]; then background=true && shift; fi
case "${1:-}" in
  -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;;
  -*) fail "usage: scripts/gpu/drive.sh [--background] [PHASES]" ;;
esac
phases="${1:-$ROOT/scripts/gpu/phases}"
phases="$(cd "$CALLER" && realpath -m "$phases")"
[ -f "$phases" ] || fail "there is no file $phases"
mkdir -p "$OUT"
OUT="$(cd "$OUT" && pwd)"
export GPU_OUT="$OUT"
LOG="$OUT/drive.log"

if $background; then
  : >"$LOG"
  setsid "${BASH_SOURCE[0]}" "$phases" </dev/null >/dev/null 2>"$OUT/drive.err" &
  say "driving in the background: $LOG"
  exit
fi

note() { echo "[$(date +%H:%M:%S)] $*" | tee -a "$LOG" >&2; }

# GPU use each half second: time, percent, MiB, W.
watch_gpu() {
  command -v nvidia-smi >/dev/null || return 0
  nvidia-smi --query-gpu=timestamp,utilization.gpu,memory.used,power.draw --format=csv,noheader,nounits -lms 500 \
    >>"$OUT/gpu.csv" 2>/dev/null </dev/null &
  watcher=$!
}

# Everything in OUT; when that is too much, first the logs and pages are left out, then all but the drive's own log.
archive() {
  local folder name
  folder="$(dirname "$OUT")" name="$(basename "$OUT")"
  tail -c 2000000 "$STATE"/server-"$PORT"-*/server.log >"$OUT/server.log" 2>/dev/null
  tar -czf "$OUT.new" -C "$folder" "$name"
  if too_big; then tar -czf "$OUT.new" -C "$folder" --exclude='report.html' --exclude='server.log' --exclude='run.log' "$name"; fi
  if too_big; then tar -czf "$OUT.new" -C "$folder" "$name/drive.log"; fi
  mv "$OUT.new" "$OUT.tar.gz" # whole at any time
}

too_big() { [ "$(stat -c %s "$OUT.new")" -gt "$MOST_BYTES" ]; }

# phase NAME SECONDS COMMAND: its status. SIGTERM at the limit lets a run save; SIGKILL follows 60 s later.
# The phase's bash outlives SIGTERM (trap), waits for the run that saves, and does the rest of the command.
phase() {
  local name=${1%%[+!]*} seconds=$2 command=$3 began=$SECONDS status
  if [ -n "${GPU_RESUME:-}" ] && [ -e "$OUT/$name.done" ] && [[ "$1" != *+* ]]; then
    note "done before: $name"
    return 0
  fi
  rm -f "$OUT/$name.done"
  note "start $name (at most $seconds s)"
  timeout --kill-after=60 "$seconds" bash -c "trap : TERM; source scripts/gpu/env.sh; $command" >>"$OUT/$name.log" 2>&1 </dev/null
  status=$?
  tail -n 4 "$OUT/$name.log" | cut -c1-400 | sed 's/^/    /' | tee -a "$LOG" >&2
  case $status in
    0) note "done $name after $((SECONDS - began)) s" && touch "$OUT/$name.done" ;;
    124 | 137) note "FAILED $name: stopped at its limit of $seconds s" ;;
    *) note "FAILED $name: status $status after $((SECONDS - began)) s; see $name.log" ;;
  esac
  archive
  return "$status"
}

watcher=""
trap 'if [ -n "$watcher" ]; then kill "$watcher" 2>/dev/null; fi' EXIT
watch_gpu
note "phases of $phases, label $LABEL, model $MODEL"
failed=0
while read name seconds command <&3 || [ -n "${name:-}" ]; do # without -r: a backslash continues a line
  case "$name" in "" | \#*) continue ;; esac
  [[ "$seconds" =~ ^[0-9]+$ && -n "$command" ]] || { note "STOPPED: a line of $phases is not NAME SECONDS COMMAND: $name $seconds"; exit 1; }
  if ! phase "$name" "$seconds" "$command"; then
    failed=$((failed + 1))
    if [[ "$name" == *!* ]]; then
      note "STOPPED: the rest needs ${name%%[+!]*}"
      archive
      exit 1
    fi
  fi
done 3<"$phases"
note "ALL DONE, $failed failed; results: $OUT.tar.gz"
archive
exit $((failed > 0))
