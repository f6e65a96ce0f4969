#!/usr/bin/env bash
# Which versions of the tinker SDK work with a self-hosted server, found by running them:
#   scripts/check_versions.sh [--server ours|stock] [SDK VERSION ...]
# --server: ours = the server with our repairs, stock = skyrl as published; without it both. VERSION: as on the package
# index, or "newest". Each gets a throwaway environment in .state/versions and takes the steps of a small training run
# (scripts/versions/try_sdk.py) under time limits. Prints a table; the answers in full: .state/versions/*.json
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$ROOT/scripts/lib/python.sh"
VERSIONS=(newest 0.36.0 0.35.0 0.30.4 0.26.2 0.25.0 0.13.1)
WORK="$STATE/versions"
SDK_LIMIT=600 # seconds for all steps of one SDK

servers=(ours stock)
case "${1:-}" in
  -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;;
  --server)
    case "${2:-}" in ours | stock) servers=("$2") ;; *) fail "--server takes ours or stock, not '${2:-}'" ;; esac
    shift 2
    ;;
  -*) fail "unknown option '$1'; see scripts/check_versions.sh --help" ;;
esac
if [ $# -gt 0 ]; then VERSIONS=("$@"); fi

# The server $1 on a free port; sets URL, and PORT and SKYRL_TX_STATE for the stop.
start() {
  PORT="$(free_port 8500)"
  export SKYRL_TX_PORT="$PORT" SKYRL_TX_STATE="$WORK/server-$1"
  local repairs=all
  if [ "$1" = stock ]; then repairs=none; fi
  say "== $1 server"
  FRESH=1 SKYRL_TX_REPAIRS="$repairs" MAX_LORA_ADAPTERS=8 MAX_LORA_RANK=8 \
    "$ROOT/scripts/start_skyrl_tx.sh" --background models/quickstart 1 >&2
  URL="http://127.0.0.1:$PORT"
}

stop() {
  if [ -n "${PORT:-}" ]; then "$ROOT/scripts/stop_skyrl_tx.sh" "$PORT"; fi
  PORT=""
}

# Environment with SDK $1; prints its folder, or returns 1 with what was wrong in $WORK/install.log.
install() {
  local venv="$WORK/sdk-$1" package="tinker==$1"
  if [ "$1" = newest ]; then package=tinker; fi
  "$UV" venv --quiet --clear --python "$PYTHON" "$venv" >&2
  "$UV" pip install --quiet --python "$venv/bin/python" "$package" >"$WORK/install.log" 2>&1 && echo "$venv"
}

# Answer of SDK $2 on the server $1, in $WORK/$1-$2.json.
try() {
  local venv answer="$WORK/$1-$2.json"
  say "SDK $2"
  venv="$(install "$2")" || {
    tail -n 3 "$WORK/install.log" >&2
    fail "tinker $2 could not be installed"
  }
  timeout "$SDK_LIMIT" "$venv/bin/python" "$ROOT/scripts/versions/try_sdk.py" "$URL" >"$answer" ||
    fail "SDK $2 gave no answer within $SDK_LIMIT s"
  rm -rf "$venv"
}

mkdir -p "$WORK"
rm -f "$WORK"/*.json
ensure_uv
PYTHON="$(find_python)"
trap stop EXIT
for server in "${servers[@]}"; do
  start "$server"
  for version in "${VERSIONS[@]}"; do try "$server" "$version"; done
  stop
done
"$PYTHON" "$ROOT/scripts/versions/table.py" "$WORK"
