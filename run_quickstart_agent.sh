#!/usr/bin/env bash
# Trains the tiny policy models/shell through mini-swe-agent, an agent that acts in each task's container, from nothing:
# installs what is missing, starts a server, trains, stops the server. Every argument overrides a setting below:
# ./run_quickstart_agent.sh seed=1
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/lib/common.sh"
help_first "$@"
# shellcheck source=/dev/null
for part in python server quickstart; do source "$ROOT/scripts/lib/$part.sh"; done
cd "$ROOT"

MODEL=models/shell WARM_UP=256 PARTS=(--dev --base-image --agents)
SERVER=(MAX_LORA_ADAPTERS=2 MAX_LORA_RANK=8 TRAIN_MICRO_BATCH_SIZE=24 SAMPLE_MAX_NUM_SEQUENCES=8 GRADIENT_CHECKPOINTING=false)
# What is measured are new instances of the eight kinds of task that are trained on: hence allow_family_overlap.
SETTINGS=(
  model_name=models/shell tasks_dir=./datasets/quickstart agent=mini-swe-agent agents_dir="$STATE/agents"
  eval_tasks="$(paste -sd, datasets/quickstart/held_out.txt)" allow_family_overlap=true eval_group_size=2 eval_every=12
  batch_size=4 group_size=6 max_steps=12 n_epochs=2 n_parallel_envs=4 trial_timeout_sec=300
  max_turns=4 max_tokens=32 context_limit=1024
  lora_rank=8 learning_rate=6e-3 loss_fn=importance_sampling
)

export SKYRL_TX_STATE="$STATE/server-quickstart-agent"
quickstart "$@"
