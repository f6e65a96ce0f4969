#!/usr/bin/env bash
# On the GPU machine without network, as root: takes in the transfer of scripts/gpu/pack.sh in whose folder it lies.
#   bash PREFIX1/unpack.sh; bash PREFIX2/unpack.sh; ...; bash PREFIXn/unpack.sh [PHASES]      in any order
# When the last one is there: Docker engine, base image, Python packages, project and model are put in place, and
# scripts/gpu/drive.sh starts in the background with PHASES (default scripts/gpu/phases, "none" = no start).
# Environment: WORK (default ~/transfers), PROJECT (~/harbortrainer), and what drive.sh takes (GPU_LABEL, GPU_PORT, GPU_OUT);
# TREE = a newer checkout, whose files go over the packed project's.
# Needs Python 3.12 with JAX, flax, torch, transformers, numpy as python3 on the PATH.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
WORK="${WORK:-$HOME/transfers}" PROJECT="${PROJECT:-$HOME/harbortrainer}"
# shellcheck source=/dev/null
source "$HERE/take_in.sh"
phases="${1:-}"
[ -z "$phases" ] || [ "$phases" = none ] || [ -f "$phases" ] || { echo "error: there is no file $phases" && exit 1; }
[ -z "$phases" ] || [ "$phases" = none ] || phases="$(realpath "$phases")"
engine_answers() { docker version --format '{{.Server.Version}}' 2>/dev/null; }

# Files that the machine has stay as they are.
install_engine() {
  local tool
  if engine_answers >/dev/null; then say "a Docker engine answers already" && return; fi
  mkdir -p "$WORK/engine" "$WORK/docker"
  unxz "$WORK/engine.tar.xz" | tar -x -C "$WORK/engine"
  cp -a --no-clobber "$WORK/engine/." / 2>/dev/null || true # some versions of cp call a kept file a failure
  ldconfig
  for tool in iptables ip6tables; do
    for name in $tool $tool-save $tool-restore; do [ -e "/usr/sbin/$name" ] || ln -s xtables-nft-multi "/usr/sbin/$name"; done
  done
  if ! iptables -t nat -L -n >"$WORK/iptables.log" 2>&1; then
    say "iptables over nft: $(head -n 1 "$WORK/iptables.log"); trying the legacy one"
    ln -sf xtables-legacy-multi /usr/sbin/iptables
  fi
  setsid dockerd --data-root "$WORK/docker" >"$WORK/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 150); do
    if engine_answers >/dev/null; then say "Docker engine $(engine_answers)" && return; fi
    sleep 0.2
  done
  tail -n 5 "$WORK/dockerd.log"
  return 1
}

install_image() {
  unxz "$WORK/base.tar.xz" | docker load && docker run --rm --network none harbortrainer/base:bookworm tmux -V
}

# Two programs named python, which are the machine's with the packages that it lacks.
install_project() {
  local part python path
  mkdir -p "$PROJECT/.state" "$WORK/packages"
  unxz "$WORK/project.tar.xz" | tar -x -C "$PROJECT"
  if [ -n "${TREE:-}" ]; then
    tar -C "$TREE" --exclude=.git --exclude='.carry*' --exclude=.venv --exclude=.state --exclude=runs -c . | tar -x -C "$PROJECT"
  fi
  rm -rf "$PROJECT/.venv" "$PROJECT/server/.venv" # never written through a link
  unxz "$WORK/packages.tar.xz" | tar -x -C "$WORK/packages"
  for part in trainer server; do
    python="$PROJECT/.venv/bin/python" path="$WORK/packages/$part:$WORK/packages/common"
    if [ "$part" = trainer ]; then
      path="$PROJECT/src:$path:$PROJECT/.state/agents/mini-swe-agent" # Harbor's module of that agent imports litellm
    else
      python="$PROJECT/server/.venv/bin/python"
    fi
    mkdir -p "$(dirname "$python")"
    printf '#!/bin/bash\nexport PYTHONPATH="%s${PYTHONPATH:+:$PYTHONPATH}"\nexec python3 "$@"\n' \
      "$path" >"$python"
    chmod +x "$python"
  done
}

install_model() {
  unxz "$WORK/model.tar.xz" | tar -x -C "$PROJECT/.state"
  if [ -d "$PROJECT/.state/smollm2-packages" ]; then
    "$PROJECT/scripts/get_smollm2.sh" --from "$PROJECT/.state/smollm2-packages"
  fi
}

check_imports() {
  (cd "$PROJECT" && .venv/bin/python -W ignore -c "import harbortrainer.training.session, tinker, transformers
print('trainer: tinker', tinker.__version__, 'transformers', transformers.__version__)") || return 1
  (cd "$PROJECT" && PYTHONPATH=server server/.venv/bin/python -W ignore -c "import sys; sys.path.append('server/shims')
import flax, jax, skyrl.tinker.api, skyrl.backends.jax, repairs
repairs.apply('engine', repairs.chosen('all')); print('server: jax', jax.__version__, 'flax', flax.__version__, jax.devices())")
}

take_in
# a transfer of pack.sh --server has no engine
([ ! -f "$WORK/engine.tar.xz" ] || { install_engine && install_image; }) >"$WORK/engine.log" 2>&1 &
engine=$!
install_project || fail "project or packages could not be unpacked"
install_model || fail "the model could not be made"
say "project, packages and model are in place"
check_imports || fail "something is not importable (see above); add it to scripts/gpu/*.list and pack again"
wait "$engine" || { cat "$WORK/engine.log" && fail "no Docker engine with the base image"; }
cat "$WORK/engine.log"
export GPU_MODEL="${GPU_MODEL:-.state/$(cat "$WORK/model-name")}"
if [ "$phases" = none ]; then say "ready: cd $PROJECT; GPU_MODEL=$GPU_MODEL scripts/gpu/drive.sh --background" && exit; fi
"$PROJECT/scripts/gpu/drive.sh" --background ${phases:+"$phases"}
say "ready; wait with: bash $PROJECT/scripts/gpu/wait.sh SECONDS [DIRECTORY] [PATTERN]"
