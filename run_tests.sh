#!/usr/bin/env bash
# Every check and test, with a real Docker engine and a real server; installs what is missing first.
# Arguments go to the integration tests' pytest: ./run_tests.sh -k server
# TESTS_STRICT_TIME=1: fails when check and integration take more than 15 minutes, of which it otherwise warns.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/lib/common.sh"
source "$ROOT/scripts/lib/docker.sh"
cd "$ROOT"
export HF_HUB_OFFLINE=1 WANDB_MODE=offline # no test may reach out
LIMIT_SEC=900
times=() failed=0

# stage NAME COMMAND...: runs it, keeps its time, goes on after a failure.
stage() {
  local name=$1 began=$SECONDS result=ok
  shift
  say "== $name"
  "$@" || { failed=1 result=FAILED; }
  times+=("$(printf '%-12s %5d s  %s' "$name" $((SECONDS - began)) "$result")")
}

finish() {
  local status=$?
  stop_own_dockerd
  if [ ${#times[@]} -gt 0 ]; then printf '== %s\n' "${times[@]}" >&2; fi
  exit "$status"
}

forget_own_dockerd
trap finish EXIT
stage setup scripts/setup.sh --all
[ "$failed" = 0 ] || exit 1
began=$SECONDS
stage check scripts/check
# two processes, each with servers of its own; files that must not meet are in one group (tests/conftest.py)
stage integration .venv/bin/python -m pytest tests/conformance tests/integration --numprocesses 2 --dist loadfile "$@"
if [ $((SECONDS - began)) -gt "$LIMIT_SEC" ]; then
  say "warning: the tests took $((SECONDS - began)) s, more than $LIMIT_SEC s; the ten slowest are listed above"
  [ "${TESTS_STRICT_TIME:-0}" != 1 ] || failed=1
fi
exit "$failed"
