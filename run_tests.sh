#!/usr/bin/env bash
# Every check and test, with a real Docker engine and a real server; installs what is missing first.
# Arguments go to the integration tests' pytest: ./run_tests.sh -k server
# TESTS_STRICT_TIME=1: fails when check and integration take more than 15 minutes, of which it otherwise warns.
# A few integration tests that fail beside others run once more, alone; those that then pass are named at the end.
# TESTS_TRIES=1: no second try. TESTS_PROCESSES=3: that share the integration tests.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/lib/common.sh"
help_first "$@"
source "$ROOT/scripts/lib/docker.sh"
cd "$ROOT"
export HF_HUB_OFFLINE=1 WANDB_MODE=offline # no test may reach out
export PYTHONDONTWRITEBYTECODE= # compiled modules are kept: every command that a test starts would compile them again
LIMIT_SEC=900
MOST_AGAIN=3 # tests that may run once more
times=() took=0 failed=0 again=() rest=''

# stage NAME COMMAND...: runs it, keeps its time (`took`), goes on after a failure.
stage() {
  local name=$1 began=$SECONDS result=ok
  shift
  say "== $name"
  "$@" || { failed=1 result=FAILED; }
  took=$((SECONDS - began))
  times+=("$(printf '%-12s %5d s  %s' "$name" "$took" "$result")")
}

# integration PYTEST-ARGUMENTS...: three processes, each with servers of its own; files that must not meet are in one group,
# and the longest run first (tests/conftest.py). Three on two cores: a test waits for most of its time, a trial or a request.
# What waits for a real daemon on a busy machine fails by chance at times: the second try is alone.
integration() {
  local cache status=0
  cache=$(mktemp -d)
  local pytest=(.venv/bin/python -m pytest tests/conformance tests/integration -o "cache_dir=$cache")
  "${pytest[@]}" --numprocesses "${TESTS_PROCESSES:-3}" --dist loadfile --no-loadscope-reorder "$@" || status=$?
  if [ "$status" = 1 ] && [ "${TESTS_TRIES:-2}" != 1 ]; then
    mapfile -t again < <(.venv/bin/python -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' \
      "$cache/v/cache/lastfailed")
    if [ ${#again[@]} -le "$MOST_AGAIN" ]; then
      say "== second try, alone: ${again[*]}"
      status=0
      "${pytest[@]}" --numprocesses 0 --last-failed --last-failed-no-failures none "$@" || status=$?
    fi
    [ "$status" = 0 ] || again=()
  fi
  rm -rf "$cache"
  return "$status"
}

finish() {
  local status=$?
  if [ -n "$rest" ]; then kill "$rest" 2>/dev/null && wait "$rest" || true; fi
  stop_own_dockerd
  if [ ${#times[@]} -gt 0 ]; then printf '== %s\n' "${times[@]}" >&2; fi
  if [ ${#again[@]} -gt 0 ]; then printf '== passed only at the second try: %s\n' "${again[@]}" >&2; fi
  exit "$status"
}

forget_own_dockerd
trap finish EXIT
stage setup scripts/setup.sh --tau # what the check needs
[ "$failed" = 0 ] || exit 1
scripts/setup.sh --all & # the rest beside the check: it waits for the network, the check for nothing
rest=$!
stage check scripts/check
spent=$took unchecked=$failed failed=0
stage "setup, rest" wait "$rest"
rest=''
[ "$failed" = 0 ] || exit 1
failed=$unchecked
stage integration integration "$@"
spent=$((spent + took))
if [ "$spent" -gt "$LIMIT_SEC" ]; then
  say "warning: the tests took $spent s, more than $LIMIT_SEC s; the ten slowest are listed above"
  [ "${TESTS_STRICT_TIME:-0}" != 1 ] || failed=1
fi
exit "$failed"
