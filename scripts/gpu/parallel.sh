#!/usr/bin/env bash
# The same phases with several seeds at once, each on a GPU of its own, then their held-out rewards beside each other:
#   scripts/gpu/parallel.sh PHASES NAME SEED [SEED ...]      e.g. scripts/gpu/parallel.sh scripts/gpu/phases grpo 0 1
# The i-th seed has the i-th GPU of CUDA_VISIBLE_DEVICES (default: all), the port GPU_PORT + i, the label GPU_LABEL-SEED, tasks
# and demonstrations of its own, and its seed in R_SFT and R_TRAIN. NAME is the run that is compared: runs/GPU_LABEL-SEED-NAME.
# Results: runs/GPU_LABEL-SEED-results of each, and runs/GPU_LABEL-held-out.txt. Fails when a drive fails.
set -uo pipefail
CALLER="$PWD"
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
[ $# -ge 3 ] && [ -f "$(cd "$CALLER" && realpath -m "$1")" ] || fail "usage: scripts/gpu/parallel.sh PHASES NAME SEED [SEED ...]"
phases="$(cd "$CALLER" && realpath -m "$1")" name=$2
shift 2
mapfile -t gpus < <(tr , '\n' <<<"${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null)}" | grep .)
[ "${JAX_PLATFORMS:-}" = cpu ] || [ $# -le ${#gpus[@]} ] || fail "$# seeds: each needs a GPU of its own, and there are ${#gpus[@]}"
drives=() runs=()
mkdir -p runs
for seed in "$@"; do
  number=${#drives[@]} label="$LABEL-$seed"
  CUDA_VISIBLE_DEVICES="${gpus[$number]:-}" GPU_LABEL="$label" GPU_PORT=$((PORT + number)) GPU_OUT="$ROOT/runs/$label-results" \
    GPU_TASKS="$STATE/$label-tasks" GPU_TALKS="$STATE/$label-talks.jsonl" R_SFT="${R_SFT:-} seed=$seed" R_TRAIN="${R_TRAIN:-} seed=$seed" \
    scripts/gpu/drive.sh "$phases" </dev/null >"runs/$label.log" 2>&1 &
  drives+=($!) runs+=("runs/$label-$name")
done
status=0
for drive in "${drives[@]}"; do wait "$drive" || status=1; done
"$PYTHON" -m scripts.gpu.held_out "${runs[@]}" | tee "runs/$LABEL-held-out.txt" || status=1
exit "$status"
