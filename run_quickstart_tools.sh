#!/usr/bin/env bash
# Trains the tiny policy models/desk to use tools in conversations (tau:examples/desk), from nothing: installs what is missing,
# starts a server, trains, stops the server. No Docker, no GPU, no key. Every argument overrides a setting below:
# ./run_quickstart_tools.sh seed=1
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/lib/common.sh"
help_first "$@"
# shellcheck source=/dev/null
for part in python server quickstart; do source "$ROOT/scripts/lib/$part.sh"; done
cd "$ROOT"

MODEL=models/desk WARM_UP=256 PARTS=(--dev)
# 48 trials make two minibatches of 24: one micro batch each, one shape to compile.
SERVER=(MAX_LORA_ADAPTERS=2 MAX_LORA_RANK=8 TRAIN_MICRO_BATCH_SIZE=24 SAMPLE_MAX_NUM_SEQUENCES=24 GRADIENT_CHECKPOINTING=false)
# The held-out tasks are those of the domain's test side: other customers, orders, ids and cities.
SETTINGS=(
  model_name=models/desk tasks_dir=tau:examples/desk
  eval_tasks=@test eval_group_size=2 eval_every=12
  batch_size=8 group_size=6 n_epochs=2 n_parallel_envs=24 trial_timeout_sec=120
  max_turns=4 max_tokens=16 context_limit=512
  lora_rank=8 learning_rate=5e-3 num_substeps=2 loss_fn=importance_sampling
)

export SKYRL_TX_STATE="$STATE/server-quickstart-tools"
quickstart "$@"
