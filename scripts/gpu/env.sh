# shellcheck shell=bash
# Sourced by drive.sh for every phase: where things are, and the calls that phases share.
# From the environment, each with GPU_ before it, which no machine's own variables have: MODEL, LABEL (first part of the
# run names), PORT, OUT (folder of the results), TASKS, TALKS.
source "$(dirname "${BASH_SOURCE[0]}")/../lib/common.sh"
cd "$ROOT" || exit 1
MODEL="${GPU_MODEL:-.state/SmolLM2-135M-Instruct}" LABEL="${GPU_LABEL:-gpu}" PORT="${GPU_PORT:-8000}" TASKS="${GPU_TASKS:-datasets/terminal-easy}"
OUT="${GPU_OUT:-$ROOT/runs/$LABEL-results}" TALKS="${GPU_TALKS:-.state/easy-demonstrations.jsonl}"
export GPU_MODEL="$MODEL" GPU_LABEL="$LABEL" GPU_PORT="$PORT" GPU_TASKS="$TASKS" GPU_OUT="$OUT" GPU_TALKS="$TALKS" # for each phase
export TINKER_TELEMETRY=0 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
URL="http://127.0.0.1:$PORT" PYTHON=.venv/bin/python
SERVER=(backend=skyrl-tx "skyrl_tx_url=$URL")
ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -Hn)" # 64 trials and their connections need more than 1024

# serve MODEL: stops the server of this port and starts one for MODEL. FRESH=0 keeps the checkpoints of its last start.
serve() {
  local state
  state="$STATE/server-$PORT-$(basename "$1")"
  for old in "$STATE/server-$PORT"-*; do SKYRL_TX_STATE="$old" scripts/stop_skyrl_tx.sh "$PORT"; done
  FRESH="${FRESH:-1}" MAX_LORA_ADAPTERS="${MAX_LORA_ADAPTERS:-4}" MAX_LORA_RANK="${MAX_LORA_RANK:-32}" \
    TRAIN_MICRO_BATCH_SIZE="${TRAIN_MICRO_BATCH_SIZE:-32}" SAMPLE_MAX_NUM_SEQUENCES="${SAMPLE_MAX_NUM_SEQUENCES:-64}" \
    GRADIENT_CHECKPOINTING="${GRADIENT_CHECKPOINTING:-true}" SKYRL_TX_PORT="$PORT" SKYRL_TX_STATE="$state" \
    scripts/start_skyrl_tx.sh --background "$1" 1
}

# fine_tune NAME MODEL field=value ...: runs/NAME by src.sft; `data` or `runs` says from what.
fine_tune() {
  local name=$1 model=$2
  shift 2
  "$PYTHON" -m src.sft "${SERVER[@]}" model_name="$model" lora_rank=32 learning_rate=1e-3 batch_size=32 lr_schedule=linear \
    context_limit=2048 run_name="$name" "$@"
}

# sft NAME MODEL [field=value ...]: runs/NAME from the demonstrations, of which one in twenty measures the held-out loss.
sft() { fine_tune "$1" "$2" data="$TALKS" n_epochs=1 warmup_steps=10 eval_split=0.05 "${@:3}"; }

# sft_own NAME EVALUATION MODEL [field=value ...]: runs/NAME from all trials of an evaluation, good and bad.
sft_own() { fine_tune "$1" "$3" runs="runs/$2" min_reward=0 "${@:4}"; }

# train NAME MODEL START [field=value ...]: runs/NAME by GRPO; START is a run directory, RUN@STEP, or "" = the base model.
# New instances of the kinds that are trained on are what is held out: hence allow_family_overlap.
train() {
  local name=$1 model=$2 start=$3
  shift 3
  "$PYTHON" -m src.train "${SERVER[@]}" model_name="$model" ${start:+"init_from=$start"} tasks_dir="$TASKS" \
    eval_tasks="$(held_out)" allow_family_overlap=true eval_group_size=4 eval_every=1000 \
    batch_size=16 group_size=8 max_steps=20 n_parallel_envs=64 trial_timeout_sec=180 \
    max_turns=4 max_tokens=128 context_limit=2048 \
    lora_rank=32 learning_rate=3e-4 num_substeps=2 loss_fn=importance_sampling run_name="$name" "$@"
}

# observations NAME [field=value ...]: 12 steps from the weights of LABEL-sft, the first and the last state kept on the server.
observations() {
  train "$1" ".state/$LABEL-bf16" "runs/$LABEL-sft" max_steps=12 save_every=0 keep_checkpoints=0 n_parallel_envs=128 eval_group_size=2 \
    learning_rate=1e-4 "${@:2}"
}

# ahead NAME [field=value ...]: 22 steps from the weights of LABEL-sft, two versions ahead, with the learning rate of `train`.
ahead() {
  train "$1" ".state/$LABEL-bf16" "runs/$LABEL-sft" max_steps=22 max_steps_off_policy=2 n_parallel_envs=128 eval_group_size=2 "${@:2}"
}

held_out() { paste -sd, "$TASKS/held_out.txt"; }

# evaluate NAME RUN [field=value ...]: trials of a run's last weights, at most 2 turns each, in runs/NAME.
evaluate() {
  local name=$1 run=$2
  shift 2
  "$PYTHON" -m src.evaluate "${SERVER[@]}" model_name="$MODEL" "checkpoint=runs/$run" tasks_dir="$TASKS" \
    allow_family_overlap=true n_parallel_envs=128 trial_timeout_sec=180 max_turns=2 max_tokens=128 context_limit=2048 out="runs/$name" "$@"
}

# keep NAME ...: what is worth keeping of runs, small, into the results.
keep() {
  local name file
  for name in "$@"; do
    mkdir -p "$OUT/$name"
    for file in "runs/$name"/*.json* "runs/$name"/{run.log,report.html}; do
      if [ -f "$file" ]; then cp "$file" "$OUT/$name/"; fi
    done
  done
}

# Of scripts/recipe: what a trial of the quickstart's policy, of terminal-easy on a GPU may take.
TINY="max_turns=4 max_tokens=32 context_limit=2048 n_parallel_envs=8 trial_timeout_sec=120"
EASY="max_turns=4 max_tokens=128 context_limit=2048 n_parallel_envs=128 trial_timeout_sec=180"

# training: the setting that leaves only the tasks that are not held out.
training() { echo "tasks_exclude=$(held_out)"; }

# measure NAME field=value ...: runs/NAME.json, how hard tasks are for the base model; runs/NAME has the trials.
measure() { "$PYTHON" -m src.tasks measure "$TASKS" "${SERVER[@]}" model_name="$MODEL" out="runs/$1.json" "${@:2}"; }

# evaluate_on NAME field=value ...: an evaluation of any policy in runs/NAME.
evaluate_on() {
  "$PYTHON" -m src.evaluate "${SERVER[@]}" model_name="$MODEL" tasks_dir="$TASKS" allow_family_overlap=true out="runs/$1" "${@:2}"
}

# start_teacher COMMAND...: an OpenAI-compatible endpoint at TEACHER_PORT, in the background, and $OUT/teacher.json for it.
start_teacher() {
  "$@" >"$OUT/teacher-server.log" 2>&1 &
  echo $! >"$OUT/teacher.pid"
  disown 2>/dev/null || true # one that has ended already is no job
  echo "{\"url\": \"http://127.0.0.1:$TEACHER_PORT/v1\", \"model\": \"teacher\"${SERVE_API_KEY:+, \"key\": \"SERVE_API_KEY\"}}" >"$OUT/teacher.json"
  until ! port_free "$TEACHER_PORT"; do
    kill -0 "$(cat "$OUT/teacher.pid")" 2>/dev/null || { tail -n 5 "$OUT/teacher-server.log"; return 1; }
    sleep 0.2
  done
}
