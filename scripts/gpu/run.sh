#!/usr/bin/env bash
# The whole recipe on this machine: base model -> SFT on demonstrations -> GRPO on datasets/terminal-easy.
#   scripts/gpu/run.sh [MODEL] [PHASES]
# MODEL: hub name or directory; default SmolLM2-135M-Instruct, which scripts/get_smollm2.sh brings.
# PHASES: default scripts/gpu/phases. Brings what is missing (Docker, environments, image), starts a server, stops it at
# the end. Results, the two held-out rewards and the report: runs/LABEL-results, runs/LABEL-grpo.
# Settings, from the environment: GPU_LABEL (default gpu-DATE-TIME), GPU_PORT=8000, and those of scripts/start_skyrl_tx.sh
# (on a smaller GPU: TRAIN_MICRO_BATCH_SIZE=8 SAMPLE_MAX_NUM_SEQUENCES=16).
set -euo pipefail
CALLER="$PWD"
case "${1:-}" in
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;;
  -*) echo "usage: scripts/gpu/run.sh [MODEL] [PHASES]" >&2 && exit 1 ;;
esac
export GPU_LABEL="${GPU_LABEL:-gpu-$(date +%m%d-%H%M%S)}"
model="${1:-}"
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
source "$ROOT/scripts/lib/server.sh"
phases="$(cd "$CALLER" && realpath -m "${2:-$ROOT/scripts/gpu/phases}")"
[ -f "$phases" ] || fail "there is no file $phases"

if ! nvidia-smi >/dev/null 2>&1 && [ "${JAX_PLATFORMS:-}" != cpu ]; then
  fail "no GPU: nvidia-smi does not work here; JAX_PLATFORMS=cpu runs it on the CPU all the same, for a tiny model"
fi
for run in sft grpo; do
  [ ! -e "runs/$LABEL-$run" ] || fail "runs/$LABEL-$run exists; give another GPU_LABEL, or continue it with src.train resume=runs/$LABEL-$run"
done
port_free "$PORT" || fail "port $PORT is in use; stop its server with scripts/stop_skyrl_tx.sh $PORT, or set GPU_PORT"

for part in --dev --server --base-image; do scripts/setup.sh "$part"; done
if [ -z "$model" ]; then
  scripts/get_smollm2.sh
else
  MODEL="$(resolve_model "$model")"
  if [ ! -d "$MODEL" ]; then
    say "fetching $MODEL from the model hub"
    "$PYTHON" -c 'import sys; from huggingface_hub import snapshot_download; snapshot_download(sys.argv[1])' "$MODEL" >/dev/null ||
      fail "$MODEL could not be fetched (see above); give a directory, or set HF_TOKEN where the model needs one"
  fi
fi
export GPU_MODEL="$MODEL"

trap 'SKYRL_TX_STATE="$STATE/server-$PORT-$(basename "$MODEL")" scripts/stop_skyrl_tx.sh "$PORT"' EXIT
status=0
scripts/gpu/drive.sh "$phases" || status=$?
if [ -f "$OUT/result.log" ]; then cat "$OUT/result.log"; fi
say "results: $OUT (also $OUT.tar.gz); report: runs/$LABEL-grpo/report.html"
exit "$status"
