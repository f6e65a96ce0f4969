# shellcheck shell=bash
# Sourced by phases that compare tensor parallelism 1 and 2 of one model, after env.sh.
# From the environment: COIN (folder for tasks whose reward is chance), TP_MEM (the server's share of each GPU), TP_TOKENS, P_STEPS (with TP 2).
COIN="${COIN:-.state/coin}" TP_MEM="${TP_MEM:-0.25}"

# Random weights earn nothing: rewards by chance make a step that moves them.
coin_tasks() {
  local task
  rm -rf "$COIN"
  mkdir -p "$COIN"
  for task in sort-1 sort-2 sort-9; do
    cp -r "$TASKS/$task" "$COIN/"
    printf '#!/bin/bash\nmkdir -p /logs/verifier\necho $((RANDOM %% 2)) >/logs/verifier/reward.txt\n' >"$COIN/$task/tests/test.sh"
  done
  echo sort-9 >"$COIN/held_out.txt"
}

# serve_on TP MODEL: in a fresh state. TP 1 takes the last GPU of those seen, TP 2 two.
serve_on() {
  local seen
  served="$2"
  seen="$(tr , '\n' <<<"${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null)}" | tail -n "$1" | paste -sd,)"
  stop_all
  CUDA_VISIBLE_DEVICES="$seen" XLA_PYTHON_CLIENT_MEM_FRACTION="$TP_MEM" FRESH=1 MAX_LORA_ADAPTERS=3 MAX_LORA_RANK=16 \
    TRAIN_MICRO_BATCH_SIZE=4 SAMPLE_MAX_NUM_SEQUENCES=16 SKYRL_TX_CONTEXT_LIMIT=4096 SESSION_TIMEOUT=600 \
    SKYRL_TX_PORT="$PORT" SKYRL_TX_STATE="$STATE/server-$PORT-$(basename "$2")" scripts/start_skyrl_tx.sh --background "$2" "$1"
}

stop_all() {
  local old
  for old in "$STATE/server-$PORT"-*; do SKYRL_TX_STATE="$old" scripts/stop_skyrl_tx.sh "$PORT"; done
}

# one_step NAME: of the model that is served.
one_step() { "$PYTHON" -m bench.one_step run "$URL" "$served" "$OUT/$1.json" --tokens "${TP_TOKENS:-512}"; }

# some_steps NAME MODEL STEPS: GRPO end to end, 16 trials in containers a step.
some_steps() {
  local status=0
  TASKS="$COIN" train "$LABEL-$1" "$2" "" batch_size=2 group_size=8 max_steps="$3" n_epochs="$3" max_turns=1 max_tokens=32 \
    lora_rank=8 n_parallel_envs=16 eval_group_size=1 num_substeps=1 || status=$?
  keep "$LABEL-$1"
  return "$status"
}

show() { "$PYTHON" -m bench.one_step compare "$OUT/$1-tp1.json" "$OUT/$1-tp2.json"; }
