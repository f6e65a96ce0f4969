#!/usr/bin/env bash
# Trains once for each value of one setting, one run after another, then writes a page that compares the runs:
#   scripts/sweep.sh train|sft FIELD=A,B,C run_name=NAME [field=value ...]
# The runs are NAME-FIELD-A, NAME-FIELD-B, ... A run that exists continues; a complete one is left as it is. Ctrl-C stops
# the present run in order and ends the sweep; the same command continues it. The page: NAME-FIELD.html in logs_dir.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
cd "$ROOT"
PYTHON="${PYTHON:-.venv/bin/python}"
usage() { sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

case "${1:-}" in
  -h | --help) usage && exit ;;
  train | sft) command=$1 ;;
  *) usage >&2 && exit 2 ;;
esac
name="" logs=./runs settings=()
[[ "${2:-}" == *=*,* ]] || fail "${2:-FIELD}: give a setting with at least two values, as learning_rate=1e-4,3e-4"
field="${2%%=*}" values="${2#*=}"
shift 2
for word in "$@"; do
  case "$word" in
    run_name=*) name="${word#run_name=}" ;;
    logs_dir=*) logs="${word#logs_dir=}" && settings+=("$word") ;;
    *) settings+=("$word") ;;
  esac
done
[ -n "$name" ] || fail "run_name: needed; give run_name=NAME, which begins the names of all runs"

runs=() failed=0
IFS=, read -ra values <<<"$values"
for value in "${values[@]}"; do
  run="$name-$field-${value//\//_}" status=0
  say "sweep: $field=$value in $logs/$run"
  "$PYTHON" -m "src.$command" "${settings[@]}" "$field=$value" run_name="$run" || status=$?
  case $status in
    0) ;;
    130 | 143) exit "$status" ;;
    *) failed=1 && say "sweep: $run ended with status $status" ;;
  esac
  if [ -f "$logs/$run/config.json" ]; then runs+=("$logs/$run"); fi
done
[ ${#runs[@]} -gt 0 ] || fail "no run was started (see above)"
"$PYTHON" -m src.report "${runs[@]}" out="$logs/$name-$field.html"
exit "$failed"
