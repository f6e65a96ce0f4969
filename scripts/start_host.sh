#!/usr/bin/env bash
# Starts this machine's Ray node for training runs with hosts=ray (docs/hosts.md). Each is safe to repeat by hand.
#   scripts/start_host.sh --head [--places N] [-- RAY_OPTION...]   the machine on which training runs
#   scripts/start_host.sh HEAD_ADDRESS [--places N] [-- RAY_OPTION...]   each machine that runs trials
#     --places N   most trials at once here; without: 8 on a host, none on the head
# Every machine needs the same token, in ~/.ray/auth_token or RAY_AUTH_TOKEN_PATH; --head makes one where there is none.
# Ray is that of .venv, or of VENV.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
PORT="${RAY_PORT:-6379}"
RAY="${VENV:-$ROOT/.venv}/bin/ray"
TOKEN="${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}"

# Without a token anybody who reaches a port of Ray runs code as this user.
need_token() {
  if [ -s "$TOKEN" ]; then return; fi
  [ -n "$head" ] || fail "no token in $TOKEN; copy the head's file there (scp HEAD:$TOKEN $TOKEN)"
  mkdir -p "$(dirname "$TOKEN")"
  (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$TOKEN")
  say "token: made $TOKEN; copy it to every host"
}

main() {
  head="" address="" places=""
  while [ $# -gt 0 ]; do
    case "$1" in
      --head) head=yes ;;
      --places) places="${2:-}" && shift ;;
      -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | spoken && exit ;;
      --) shift && break ;;
      -*) fail "unknown option '$1'; --head, --places N, or -- and options of ray start" ;;
      *) address="$1" ;;
    esac
    shift
  done
  [ -n "$head$address" ] || fail "give --head, or the address of the head"
  [ -x "$RAY" ] || fail "no $RAY; run scripts/setup.sh --ray"
  need_token
  # set by us: Ray's own default asks for no token
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$TOKEN" RAY_USAGE_STATS_ENABLED=0
  export RAY_worker_niceness=0 # Ray's own default is 15: trials would wait for all else, their containers included
  export RAY_memory_monitor_refresh_ms=0 # or Ray kills all trials of a machine whose memory containers have filled
  local where
  if [ -n "$head" ]; then
    # a silent node is dead after 2 + 4 x 1 s; Ray's own default needs about a minute
    export RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=2000 RAY_health_check_failure_threshold=4
    where=(--head --port "$PORT" --include-dashboard false)
    places="${places:-0}"
  else
    where=(--address "$address:$PORT")
    places="${places:-8}"
  fi
  local offer=()
  if [ "$places" != 0 ]; then offer=(--resources "{\"trials\": $places}"); fi
  exec "$RAY" start "${where[@]}" "${offer[@]}" --disable-usage-stats --include-log-monitor false \
    --object-store-memory 200000000 "$@"
}

main "$@"
