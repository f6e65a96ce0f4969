#!/usr/bin/env bash
# Runs a published recipe of the Tinker cookbook, unmodified, against a self-hosted server:
#   scripts/run_cookbook_loop.sh rl_loop|sl_loop [--straight] [key=value of the recipe ...]
# Twelve batches of a made-up data set and a tiny policy (seconds to a minute of training on 2 cores). The recipe is killed after its
# first checkpoint and run again, which resumes from it (--straight: not killed); then its own metrics are checked.
# Environment (1.3 GB), data and the recipe's logs: .state/cookbook. A server is started and stopped, unless one is named:
#   SKYRL_TX_URL=http://HOST:PORT   serves the model under its hub name, which model_name=OWNER/NAME then gives
# docs/cookbook.md says more.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$ROOT/scripts/lib/python.sh"
source "$ROOT/scripts/cookbook/environment.sh"
WORK="$STATE/cookbook"

recipe="${1:-}"
case "$recipe" in
  -h | --help) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;;
  rl_loop | sl_loop) shift ;;
  *) fail "usage: scripts/run_cookbook_loop.sh rl_loop|sl_loop [--straight] [key=value of the recipe ...]" ;;
esac
for setting in "$@"; do
  case "$setting" in
    base_url=* | log_path=*) fail "$setting: set by this script; SKYRL_TX_URL names a server" ;;
    *=* | --straight) ;;
    *) fail "'$setting' is not key=value" ;;
  esac
done

# A server of our own on a free port; sets URL.
start_server() {
  export SKYRL_TX_STATE="$WORK/server"
  PORT="${SKYRL_TX_PORT:-$(free_port 8600)}"
  SKYRL_TX_PORT="$PORT" FRESH=1 MAX_LORA_RANK="${MAX_LORA_RANK:-8}" \
    "$ROOT/scripts/start_skyrl_tx.sh" --background "$MODEL" 1 >&2
  URL="http://127.0.0.1:$PORT"
}

stop_server_again() {
  if [ -n "${PORT:-}" ]; then "$ROOT/scripts/stop_skyrl_tx.sh" "$PORT"; fi
}

cd "$ROOT"
ready_cookbook "$WORK"
MODEL=Qwen/Qwen3-8B URL="${SKYRL_TX_URL:-}"
trap stop_server_again EXIT
if [ -z "$URL" ]; then start_server; fi
.venv/bin/python scripts/cookbook/loop.py "$WORK/venv/bin/python" "$URL" "$recipe" "$WORK" "$@"
