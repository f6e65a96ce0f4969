#!/usr/bin/env bash
# Trains the tiny policy models/quickstart on real terminal tasks, from nothing: installs what is missing, starts a server,
# trains, stops the server. Every argument overrides a setting below: ./run_quickstart.sh seed=1
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/lib/common.sh"
# shellcheck source=/dev/null
for part in python server; do source "$ROOT/scripts/lib/$part.sh"; done
cd "$ROOT"

# 48 trials make two minibatches of 24: one micro batch each, one shape to compile.
SERVER=(MAX_LORA_ADAPTERS=2 MAX_LORA_RANK=8 TRAIN_MICRO_BATCH_SIZE=24 SAMPLE_MAX_NUM_SEQUENCES=8 GRADIENT_CHECKPOINTING=false)
# What is measured are new instances of the eight kinds of task that are trained on: hence allow_family_overlap.
SETTINGS=(
  model_name=models/quickstart tasks_dir=./datasets/quickstart
  eval_tasks="$(paste -sd, datasets/quickstart/held_out.txt)" allow_family_overlap=true eval_group_size=2 eval_every=6
  batch_size=8 group_size=6 n_epochs=3 n_parallel_envs=8 trial_timeout_sec=120
  max_turns=4 max_tokens=32 context_limit=2048
  lora_rank=8 learning_rate=5e-3 num_substeps=2 loss_fn=importance_sampling
)

export SKYRL_TX_STATE="$STATE/server-quickstart"
own_port=""

# Runs beside everything else; when the server does not come up, the trainer need not wait for it.
# What it says is told only then: the trainer has the terminal by the time it is ready.
start_server() {
  local fresh=1 said=""
  case " $* " in *" resume="* | *" run_name="*) fresh=0 ;; esac # a run that goes on needs the server's checkpoints
  local parts=(--server)
  if [ "${SAMPLER:-jax}" = vllm ]; then parts+=(--sampler); fi
  if ! scripts/setup.sh "${parts[@]}" || ! said="$(env "${SERVER[@]}" FRESH="$fresh" SKYRL_TX_PORT="$own_port" \
    scripts/start_skyrl_tx.sh --background models/quickstart 1 --backend-config '{"warm_up_tokens": 512}' 2>&1)"; then
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
  own_port="$(free_port "${SKYRL_TX_PORT:-8000}")" url="http://127.0.0.1:$own_port"
  start_server "$@" &
}

# Returns once the server's API listens. Its engine needs some seconds more, in which the trainer starts.
prepare() {
  local jobs=() job part
  for part in --dev --base-image; do
    scripts/setup.sh "$part" &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || fail "setup failed (see above)"; done
  while port_free "${url##*:}"; do sleep 0.1; done
}

trap stop_all EXIT
trap 'exit 1' TERM
ensure_uv
choose_server "$@"
prepare
say "quickstart: set up after $SECONDS s; training; the server's log: $SKYRL_TX_STATE/server.log"
.venv/bin/python -m src.train backend=skyrl-tx skyrl_tx_url="$url" "${SETTINGS[@]}" "$@" &
trainer=$!
trap 'kill -TERM "$trainer"' INT TERM # the trainer stops in order, then the server
status=0
while kill -0 "$trainer" 2>/dev/null; do wait "$trainer" && status=0 || status=$?; done
exit "$status"
