#!/usr/bin/env bash
# Runs published recipes of the Tinker cookbook, unmodified, each to its end against a self-hosted server:
#   scripts/run_cookbook_recipes.sh [--write] [NAME ...]      NAME: a recipe of scripts/cookbook/recipes.py; default: all
# Two training steps each, with made-up data and a tiny policy (an hour for all on 2 cores, mostly to compile). A server
# is started and stopped for each model that a recipe names. --write puts the table into bench/RESULTS.md.
#   JOBS=1                           recipes that run at once; each takes a LoRA slot or two
#   SKYRL_TX_URL=http://HOST:PORT    a server of the recipes' model instead, and no other
# Environment (1.4 GB), data, logs: .state/cookbook. code_rl and harbor_rl need Docker. docs/cookbook.md says more.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_first "$@"
source "$ROOT/scripts/lib/python.sh"
source "$ROOT/scripts/cookbook/environment.sh"
WORK="$STATE/cookbook"

cd "$ROOT"
[ -x .venv/bin/python ] || fail "the trainer environment .venv is missing; run scripts/setup.sh"
.venv/bin/python -m scripts.cookbook.recipes "$@" # names are refused before anything is installed
ready_cookbook "$WORK"
export SKYRL_TX_PORT="${SKYRL_TX_PORT:-$(free_port 8600)}"
exec .venv/bin/python -m scripts.cookbook.run "$WORK" "$WORK/venv/bin/python" "$@"
