#!/usr/bin/env bash
# Stops the self-hosted server that scripts/start_skyrl_tx.sh started:  scripts/stop_skyrl_tx.sh [PORT]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_first "$@"
source "$ROOT/scripts/lib/server.sh"

port="${1:-${SKYRL_TX_PORT:-8000}}"
state="$(server_state "$port")"
pid="$(server_pid "$state")" || {
  port_free "$port" || fail "port $port is in use, but not by the server of $state; set SKYRL_TX_STATE as at its start"
  say "no server of scripts/start_skyrl_tx.sh runs on port $port"
  exit 0
}
rm -f "$state/server.pid" # first: a start that still waits for this server sees that it was meant
stop_server "$pid"
say "stopped the server on port $port"
