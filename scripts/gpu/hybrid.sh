# shellcheck shell=bash
# Sourced by the phases of phases_hybrid, after env.sh: Qwen3.5's published class with random weights; then sampler.sh.
# From the environment: V_SIZE (of scripts/models/tiny_hybrid.py), H_TOKENS (of the datum that is trained), H_GIB (of the
# GPU, all that the trainer may take), V_CONTEXT, V_MEM, V_SEATS, V_TOTAL and V_BENCH as in sampler.sh.
V_SIZE="${V_SIZE:-4b}" V_CONTEXT="${V_CONTEXT:-40960}" V_MEM="${V_MEM:-0.38}" V_SEATS="${V_SEATS:-16}" V_TOTAL="${V_TOTAL:-1100}"
V_MODEL="${V_MODEL:-.state/qwen3.5-$V_SIZE}" H_TOKENS="${H_TOKENS:-32768}" H_GIB="${H_GIB:-40}"
V_BENCH="--datums 1 --datum-tokens $H_TOKENS --steps 3 --trusted 16 --answer 64 --publishes 2 ${V_BENCH:-}"
source "$ROOT/scripts/gpu/sampler.sh"

make_hybrid() {
  time_left 0
  if [ ! -f "$V_MODEL/config.json" ]; then
    "$PYTHON" -m scripts.models.tiny_hybrid "$V_TOKENIZER" "$V_MODEL" published "${V_DTYPE:-bfloat16}" "$V_SIZE"
  fi
  ls -l "$V_MODEL"
}

# within_limit: JAX takes H_GIB of the first GPU, whatever its size; what needs more fails. No GPU: no limit.
within_limit() {
  local mib
  mib="$(nvidia-smi --id=0 --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null)" || return 0
  XLA_PYTHON_CLIENT_MEM_FRACTION="$(awk -v gib="$H_GIB" -v mib="$mib" 'BEGIN { printf "%.3f", gib * 1024 / mib }')"
  export XLA_PYTHON_CLIENT_MEM_FRACTION
}

# vLLM knows the class: that needs torchvision, also without images. Without its environment the phase is left out.
has_vllm() {
  if [ ! -x server/vllm/.venv/bin/python ]; then echo "left out: no server/vllm/.venv" && exit 0; fi
  server/vllm/.venv/bin/python -W ignore -c 'import torchvision, vllm.model_executor.models.qwen3_5; print("torchvision", torchvision.__version__)'
}
