# shellcheck shell=bash
# Sourced by the quickstarts: server and trainer of one run, from nothing. Needs common.sh, python.sh and server.sh.
#   MODEL     directory of the policy
#   PARTS     what scripts/setup.sh brings beside the server's environment
#   SERVER    environment of the server's start
#   WARM_UP   tokens of a usual trial: the server compiles its programs up to there beside its work
#   SETTINGS  of the trainer
# From the environment: SKYRL_TX_PORT, SKYRL_TX_HOST and SKYRL_TX_API_KEY (start_skyrl_tx.sh), VENV (setup.sh).
own_port=""

# Runs beside everything else; when the server does not come up, the trainer need not wait for it.
# What it says is told only then: the trainer has the terminal by the time it is ready.
start_server() {
  local fresh=1 said=""
  case " $* " in *" resume="* | *" run_name="*) fresh=0 ;; esac # a run that goes on needs the server's checkpoints
  local parts=(--server)
  if [ "${SAMPLER:-jax}" = vllm ]; then parts+=(--sampler); fi
  if ! scripts/setup.sh "${parts[@]}" || ! said="$(env "${SERVER[@]}" FRESH="$fresh" SKYRL_TX_PORT="$own_port" HARBORTRAINER_CALLER= \
    scripts/start_skyrl_tx.sh --background "$MODEL" 1 --backend-config "{\"warm_up_tokens\": $WARM_UP}" 2>&1)"; then
    say ${said:+"$said"}
    kill -TERM $$
  fi
}

stop_all() {
  # first whatever still sets up: it would start the server after this
  jobs -p | xargs --no-run-if-empty kill 2>/dev/null || true
  if [ -n "$own_port" ]; then scripts/stop_skyrl_tx.sh "$own_port"; fi
}

# Sets url: that of the server left by another quickstart, or of one started here while the rest is set up.
choose_server() {
  if server_pid "$SKYRL_TX_STATE" >/dev/null; then
    url="$(ready_url "$SKYRL_TX_STATE")" ||
      fail "the server of another quickstart is starting; wait for it, or run: SKYRL_TX_STATE=$SKYRL_TX_STATE scripts/stop_skyrl_tx.sh"
    say "quickstart: using the server that runs at $url"
    return
  fi
  own_port="$(free_port "${SKYRL_TX_PORT:-8000}")" url="http://${SKYRL_TX_HOST:-127.0.0.1}:$own_port"
  start_server "$@" &
}

# Returns once the server's API listens. Its engine needs some seconds more, in which the trainer starts.
prepare() {
  local jobs=() job part address
  for part in "${PARTS[@]}"; do
    scripts/setup.sh "$part" &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || fail "setup failed (see above)"; done
  address="${url#http://}"
  while port_free "${address##*:}" "${address%:*}"; do sleep 0.1; done
}

# quickstart [SETTING=VALUE ...]: does not return.
quickstart() {
  trap stop_all EXIT
  trap 'exit 1' TERM
  if [ -n "${HARBORTRAINER_CALLER:-}" ]; then SETTINGS+=(logs_dir="$HARBORTRAINER_CALLER/runs"); fi
  case " $* " in *" resume="*) SETTINGS=() ;; esac # the run has its own, its folder and its user's included
  ensure_uv
  choose_server "$@"
  prepare
  say "quickstart: set up after $SECONDS s; training; the server's log: $SKYRL_TX_STATE/server.log"
  "${VENV:-.venv}/bin/python" -m src.train backend=skyrl-tx skyrl_tx_url="$url" "${SETTINGS[@]}" "$@" &
  trainer=$!
  trap 'kill -TERM "$trainer"' INT TERM # the trainer stops in order, then the server
  local status=0
  while kill -0 "$trainer" 2>/dev/null; do wait "$trainer" && status=0 || status=$?; done
  case "$status" in 75 | 8[0-2] | 130)
    if [ -n "$own_port" ]; then say "quickstart: its server stops too; continue both with: $0 resume=RUN_DIR"; fi ;;
  esac
  exit "$status"
}
