#!/usr/bin/env bash
# Trains the tiny policy models/quickstart on real terminal tasks, from nothing: installs what is missing, starts a server,
# trains, stops the server. Every argument overrides a setting below: ./run_quickstart.sh seed=1
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/lib/common.sh"
help_first "$@"
# shellcheck source=/dev/null
for part in python server quickstart; do source "$ROOT/scripts/lib/$part.sh"; done
cd "$ROOT"

MODEL=models/quickstart WARM_UP=512 PARTS=(--dev --base-image)
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
quickstart "$@"
