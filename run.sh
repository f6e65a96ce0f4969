#!/usr/bin/env bash
# Trains on Tinker cloud. TINKER_API_KEY and WANDB_API_KEY come from the environment or .env.
# Every argument overrides a setting below: ./run.sh batch_size=4
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python=.venv/bin/python
[ -x "$python" ] || python=python

exec "$python" -m src.train backend=tinker model_name=Qwen/Qwen3-4B \
  tasks_dir=./datasets/terminal-bench-2 learning_rate=2e-4 batch_size=2 group_size=16 n_parallel_envs=16 max_tokens=2048 \
  temperature=0.7 context_limit=32000 proactive_summarization_threshold=8000 enable_summarize=true n_epochs=2 num_substeps=4 \
  remove_constant_reward_groups=true normalize_advantages_by_std=true loss_fn=ppo environment_type=docker \
  wandb_project=harbor-training wandb_name=qwen3-tinker "$@"
