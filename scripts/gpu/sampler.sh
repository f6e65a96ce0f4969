# shellcheck shell=bash
# Sourced by the phases of phases_sampler, after env.sh: a model of random weights, and servers to compare samplers on.
# From the environment: V_SIZE (of scripts/models/tiny_model.py), V_TOKENIZER, V_CONTEXT, V_MEM (vLLM's share of the GPU;
# the trainer has 0.45), V_MICRO, V_SEATS, V_TOTAL (seconds within which all phases end), V_FIRST (most for vLLM's first
# start), V_BENCH and V_JAX_BENCH (more flags of bench.sampler, and those for the JAX sampler alone).
V_SIZE="${V_SIZE:-4b}" V_TOKENIZER="${V_TOKENIZER:-.state/SmolLM2-135M-Instruct}" V_CONTEXT="${V_CONTEXT:-16384}" V_MEM="${V_MEM:-0.5}"
V_MICRO="${V_MICRO:-2}" V_SEATS="${V_SEATS:-32}" V_TOTAL="${V_TOTAL:-900}" V_FIRST="${V_FIRST:-240}"
V_BENCH="${V_BENCH:-}" V_JAX_BENCH="${V_JAX_BENCH---turns 3}" V_MODEL="${V_MODEL:-.state/qwen3-$V_SIZE}" V_STATE="$STATE/server-$PORT-$(basename "$V_MODEL")"

left() { echo $((V_TOTAL + $(cat "$OUT/began") - $(date +%s))); }

# time_left SECONDS: ends the phase unless that much of V_TOTAL is left.
time_left() {
  if [ ! -f "$OUT/began" ]; then date +%s >"$OUT/began"; fi
  if [ "$(left)" -lt "$1" ]; then echo "left out: $(left) of $V_TOTAL s are left" && exit 0; fi
}

make_model() {
  time_left 0
  if [ ! -f "$V_MODEL/config.json" ]; then "$PYTHON" -m scripts.models.tiny_model "$V_TOKENIZER" "$V_MODEL" qwen3 "${V_DTYPE:-bfloat16}" "$V_SIZE"; fi
  ls -l "$V_MODEL"
}

# start_sampler NAME: a server for V_MODEL with SAMPLER=NAME; its start is a line of ready.jsonl.
start_sampler() {
  local began=$SECONDS status=0
  SAMPLER="$1" VLLM_MEM="$V_MEM" VLLM_MAX_DEATHS="${VLLM_MAX_DEATHS:-2}" SKYRL_TX_CONTEXT_LIMIT="$V_CONTEXT" SESSION_TIMEOUT=600 \
    MAX_LORA_ADAPTERS=3 TRAIN_MICRO_BATCH_SIZE="$V_MICRO" SAMPLE_MAX_NUM_SEQUENCES="$V_SEATS" serve "$V_MODEL" || status=$?
  printf '{"measure": "start", "sampler": "%s", "flags": "%s", "status": %d, "start_sec": %d}\n' \
    "$1" "${VLLM_FLAGS:-}" "$status" $((SECONDS - began)) | tee -a "$OUT/ready.jsonl"
  keep_logs "$1"
  return "$status"
}

# vLLM compiled; where that fails or takes more than V_FIRST seconds, without compiling and graphs.
start_vllm() {
  local guard status=0
  (sleep "$V_FIRST" && stop_sampler) &
  guard=$!
  start_sampler vllm || status=$?
  kill "$guard" 2>/dev/null
  [ "$status" = 0 ] || VLLM_FLAGS="--enforce-eager ${VLLM_FLAGS:-}" start_sampler vllm
}

keep_logs() {
  for file in "$V_STATE"/{server,vllm}.log; do if [ -f "$file" ]; then tail -c 3000000 "$file" >"$OUT/$1-$(basename "$file")"; fi; done
}

# measure NAME [FLAG ...]: bench.sampler on the server that runs, as long as V_TOTAL allows; lines in NAME.jsonl.
measure() {
  local name=$1 status=0
  shift
  time_left 10
  # shellcheck disable=SC2086
  timeout "$(left)" "$PYTHON" -m bench.sampler "$URL" --model "$V_MODEL" --label "$name" --out "$OUT/$name.jsonl" $V_BENCH "$@" || status=$?
  curl --silent --max-time 10 "$URL/api/v1/healthz" >"$OUT/$name-healthz.json"
  nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv,noheader 2>/dev/null
  keep_logs "$name"
  return "$status"
}

stop_sampler() { SKYRL_TX_STATE="$V_STATE" scripts/stop_skyrl_tx.sh "$PORT"; }

# timed_start NAME: the README's first command for V_MODEL, over V_TP GPUs; its seconds are a line of ready.jsonl.
timed_start() {
  local began=$SECONDS status=0
  SKYRL_TX_PORT="$PORT" scripts/start_skyrl_tx.sh --background "$V_MODEL" "${V_TP:-1}" || status=$?
  printf '{"measure": "start", "name": "%s", "status": %d, "start_sec": %d}\n' "$1" "$status" $((SECONDS - began)) | tee -a "$OUT/ready.jsonl"
  curl --silent --max-time 10 "$URL/api/v1/healthz"
  keep_line
  return "$status"
}

keep_line() {
  for file in "$STATE/server-$PORT"/{server,vllm}.log; do if [ -f "$file" ]; then tail -c 3000000 "$file" >"$OUT/line-$(basename "$file")"; fi; done
}

# wide MEASURES [FLAG ...]: many samples at once, or none where T_REQUESTS=0 (scripts/gpu/phases_two).
wide() {
  if [ "${T_REQUESTS:-512}" = 0 ]; then exit; fi
  measure "$LABEL" --only "$1" --prompts $((${T_REQUESTS:-512} / 2)) --tokens $((4 * ${T_PROMPT:-250})) --answer "${T_ANSWER:-512}" "${@:2}"
}

several() { [[ "${VLLM_GPUS:-}" = *,* || "${VLLM_CPU_REPLICAS:-1}" -gt 1 ]]; }

# line: T_STEPS steps of README's second command with longer trials, in runs/LABEL-line.
line() {
  local steps="${T_STEPS:-10}" status=0
  if [ "$steps" = 0 ]; then exit; fi
  # shellcheck disable=SC2086
  ./run_skyrl_tx.sh model_name="$V_MODEL" tasks_dir=.state/random wandb_project= max_turns="${T_TURNS:-30}" max_tokens=64 temperature=1 \
    n_parallel_envs=32 n_epochs="$steps" max_steps="$steps" skyrl_tx_url="$URL" run_name="$LABEL-line" ${T_LINE:-} || status=$?
  keep "$LABEL-line"
  keep_line
  return "$status"
}

# passes SECONDS [FLAG ...]: scripts.gpu.passes on V_MODEL with most of the GPU; lines in passes.jsonl.
passes() {
  export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$STATE/jax-cache}" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
  XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.95}" \
    server/.venv/bin/python -m scripts.gpu.passes "$V_MODEL" --seconds "$1" --out "$OUT/passes.jsonl" "${@:2}"
}

# Four tasks of the easy family that are graded at random.
random_tasks() {
  local task
  "$PYTHON" -m scripts.easy.make_tasks .state/easy
  mkdir -p .state/random
  for task in $(find .state/easy -mindepth 1 -maxdepth 1 -type d | sort | head -n 4); do
    cp -r "$task" .state/random/
    printf '#!/bin/bash\nmkdir -p /logs/verifier\necho $((RANDOM %% 2)) >/logs/verifier/reward.txt\n' >".state/random/$(basename "$task")/tests/test.sh"
  done
}
