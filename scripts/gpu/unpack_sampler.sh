#!/usr/bin/env bash
# On the GPU machine without network: takes in the transfer of scripts/gpu/pack.sh --sampler in whose folder it lies.
#   bash PREFIX1/unpack_sampler.sh; bash PREFIX2/unpack_sampler.sh; ...      in any order, before or after unpack.sh's
# When the last one is there: vLLM is put into PROJECT/server/vllm/.venv, whose python is the machine's with vLLM's
# packages, and its kernels run once on a GPU (scripts/gpu/check_sampler.py).
# Environment: SAMPLER_WORK (default ~/sampler), PROJECT (~/harbortrainer), CHECK=0 to leave the check out;
# TREE = a newer checkout, whose files go over PROJECT's. Programs that run keep the files with which they began.
# Needs Python 3.12 with torch 2.11 for CUDA 13, triton and transformers as python3 on the PATH.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
WORK="${SAMPLER_WORK:-$HOME/sampler}" PROJECT="${PROJECT:-$HOME/harbortrainer}"
# shellcheck source=/dev/null
source "$HERE/take_in.sh"

# A program named python, and the packages where a virtual environment would have them.
install() {
  local venv="$PROJECT/server/vllm/.venv" site
  site="$venv/lib/python3.12/site-packages"
  rm -rf "$venv" # never written through a link
  mkdir -p "$site" "$venv/bin"
  unxz "$WORK/sampler.tar.xz" | tar -x -C "$site"
  printf '#!/bin/bash\nexport PYTHONPATH="%s${PYTHONPATH:+:$PYTHONPATH}"\nexec python3 "$@"\n' "$site" >"$venv/bin/python"
  chmod +x "$venv/bin/python"
}

take_in
if [ -n "${TREE:-}" ]; then
  mkdir -p "$PROJECT"
  tar -C "$TREE" --exclude=.git --exclude='.carry*' --exclude=.venv --exclude=.state --exclude=runs -c . |
    tar -x -C "$PROJECT"
fi
install || fail "vLLM could not be unpacked"
say "vLLM is in place"
if [ "${CHECK:-1}" = 0 ]; then exit; fi
"$PROJECT/server/vllm/.venv/bin/python" -W ignore "$HERE/check_sampler.py" ||
  fail "vLLM cannot be imported, or its kernels do not run here (see above)"
say "ready: SAMPLER=vllm"
