#!/usr/bin/env bash
# Trains on the self-hosted server of scripts/start_skyrl_tx.sh. Settings come from the environment, .env.skyrl-tx or .env.
# Every argument overrides a setting below: ./run_skyrl_tx.sh batch_size=4
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
url="${SKYRL_TX_URL:-}"
set -a
for file in .env .env.skyrl-tx; do if [ -f "$file" ]; then source "./$file"; fi; done
set +a
# 16 trials and their connections need more open files than the usual 1024
ulimit -n 65536 2>/dev/null || echo "run_skyrl_tx.sh: open files stay limited to $(ulimit -n); raise the hard limit if trials fail" >&2
python=.venv/bin/python
[ -x "$python" ] || python=python

exec "$python" -m src.train backend=skyrl-tx skyrl_tx_url="${url:-${SKYRL_TX_URL:-http://localhost:8000}}" model_name=Qwen/Qwen3-4B \
  tasks_dir=./datasets/terminal-bench-2 learning_rate=2e-4 batch_size=2 group_size=16 n_parallel_envs=16 max_tokens=2048 \
  temperature=0.7 context_limit=128000 proactive_summarization_threshold=8000 enable_summarize=true n_epochs=2 num_substeps=4 \
  remove_constant_reward_groups=true normalize_advantages_by_std=true loss_fn=ppo environment_type=docker \
  wandb_project=harbor-training wandb_name=qwen3-skyrl-tx "$@"
