#!/usr/bin/env bash
# Starts the self-hosted Tinker API server (skyrl on JAX: GPUs where there are any, else CPU).
#   scripts/start_skyrl_tx.sh [--background] MODEL [TP] [flags of skyrl ...]
# MODEL: hub name, or directory relative to the repository (train with the same name, from the repository).
# TP: tensor-parallel size, the number of GPUs one model is spread over; default 1.
# --background: returns when the server takes requests. Without it the server runs here until Ctrl-C.
# Settings, from the environment:
#   SKYRL_TX_PORT=8000  SKYRL_TX_HOST=127.0.0.1    SKYRL_TX_STATE=.state/server-PORT   checkpoints, database, log
#   FRESH=1                  forget everything first: deletes database and checkpoints of SKYRL_TX_STATE; 0 = keep
#   MAX_LORA_ADAPTERS=4      slots, one of them the base model's; every slot costs memory and time at each step
#   MAX_LORA_RANK=32
#   TRAIN_MICRO_BATCH_SIZE=8     most sequences in one forward and backward pass, which memory bounds by tokens; 0 = no limit
#   SAMPLE_MAX_NUM_SEQUENCES=16  most sequences sampled at once, which memory bounds by tokens; 0 = all that wait
#   GRADIENT_CHECKPOINTING=true   layers computed again in the backward pass: memory for long contexts; false = off
#   SESSION_TIMEOUT=60       seconds after which a client that has vanished loses its slot
#   SKYRL_TX_REPAIRS=all     which repairs of server/repairs: all, names with commas between, none = skyrl as published,
#                            sdk = as published, but for what our version of the tinker SDK cannot do without
#   SKYRL_TX_CONTEXT_LIMIT=0 tokens in one sequence; 0 = what the model was made for: 131072 with Qwen3, by YaRN; 40960 = without
#   SKYRL_TX_KEEP_SEC=900    seconds for which the database keeps requests and results after their answer
#   SKYRL_TX_KEEP_MB=1024    MiB that they may take, at most; then the oldest go earlier
#   SKYRL_TX_LOG_MB=64       MiB of server.log (--background) and vllm.log; a full one is put aside as .1, .2, .3, then deleted
#   JAX_COMPILATION_CACHE_DIR=.state/jax-cache     compiled programs, kept between starts; a start leaves 4 GiB
#   XLA_PYTHON_CLIENT_MEM_FRACTION=0.92            share of the GPU's memory that JAX takes; computed beside vLLM
#   SKYRL_TX_API_KEY         the key that the server requires (header X-API-Key), tml- and 16 characters or more. Without
#                            it, a server on 127.0.0.1 requires none. A server on another SKYRL_TX_HOST gets one made in
#                            SKYRL_TX_STATE/api_key; set SKYRL_TX_API_KEY to it where you train
#   SAMPLER                  vllm = samples are computed by vLLM (scripts/setup.sh --sampler installs it), jax = by the trainer's engine;
#                            default: vllm where it is installed, can sample the model and fits beside the trainer on one GPU, and where
#                            VLLM_GPUS or VLLM_URLS are set. Then also:
#   VLLM_GPUS=1,2            GPUs of vLLM, a replica on each; the trainer has the others, and shares where there are too few;
#                            empty: vLLM shares the trainer's first
#   VLLM_MEM                 share of a GPU for vLLM; computed where shared, else 0.9
#   VLLM_MAX_DEATHS=3        ends in ten minutes after which vLLM stays away; VLLM_FLAGS: more flags for it, one string
#   VLLM_HANG_SEC            seconds without a token, with a request waiting, after which vLLM is started again; 300, CPU 1800
#   VLLM_URLS                vLLM servers that run already, with commas between, instead of starting any; they must see
#                            the folder SKYRL_TX_STATE/vllm-adapters, and take the key VLLM_API_KEY
#   VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_THREADS=1 VLLM_CPU_REPLICAS=1    on a CPU: GiB of its cache, its threads, servers
# Several GPUs: Qwen3-30B-A3B over 8, micro batch 2, and more room for rollouts:
#   TRAIN_MICRO_BATCH_SIZE=2 SAMPLE_MAX_NUM_SEQUENCES=64 scripts/start_skyrl_tx.sh Qwen/Qwen3-30B-A3B 8
# Any other setting of the JAX backend, added to those above:
#   scripts/start_skyrl_tx.sh Qwen/Qwen3-30B-A3B 4 --backend-config '{"expert_parallel_size": 2}'
set -euo pipefail
CALLER="$PWD"
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$ROOT/scripts/lib/server.sh"

background=false
if [ "${1:-}" = --background ]; then background=true && shift; fi
case "${1:-}" in
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}" | spoken && exit ;;
  "" | -*) fail "usage: scripts/start_skyrl_tx.sh [--background] MODEL [TP] [flags of skyrl ...]" ;;
esac
model="$1" tp=1 && shift
if [[ "${1:-}" =~ ^[0-9]+$ ]]; then tp="$1" && shift; fi

cd "${HARBORTRAINER_CALLER:-$ROOT}" # models are named as the trainer names them
port="${SKYRL_TX_PORT:-8000}" host="${SKYRL_TX_HOST:-127.0.0.1}"
require_whole SKYRL_TX_PORT "$port" 1
[ "$port" -le 65535 ] || fail "SKYRL_TX_PORT=$port: must be 65535 or less"
require_whole TP "$tp" 1
require_settings
state="$(server_state "$port")"
require_server_env
model="$(resolve_model "$model")"
require_free_port "$port"
choose_device "$tp"
sampler="${SAMPLER:-$(default_sampler "$tp")}"
choose_sampler "$sampler" "$tp"

lock_state "$state"
require_key "$state" "$host"
if [ "$FRESH" = 1 ]; then forget_state "$state"; fi
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$STATE/jax-cache}"
# Everything, however small: a start compiles many small programs
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1
drop_old_programs "$JAX_COMPILATION_CACHE_DIR"
export HF_HUB_DISABLE_TELEMETRY=1
unset TINKER_API_KEY WANDB_API_KEY # of whoever starts it: no client of the server is served by them
if [ -d "$model" ]; then export HF_HUB_OFFLINE=1; fi
backend_config="$(printf '{"tensor_parallel_size": %d, "max_lora_adapters": %d, "max_lora_rank": %d, "train_micro_batch_size": %d, "sample_max_num_sequences": %d, "gradient_checkpointing": %s}' \
  "$tp" "$MAX_LORA_ADAPTERS" "$MAX_LORA_RANK" "$TRAIN_MICRO_BATCH_SIZE" "$SAMPLE_MAX_NUM_SEQUENCES" "$GRADIENT_CHECKPOINTING")"
command=("$ROOT/server/.venv/bin/python" "$ROOT/server/launch.py" --base-model "$model" --backend-config "$backend_config"
  --checkpoints-base "$state/checkpoints" --database-url "sqlite:///$state/tinker.db" --host "$host" --port "$port"
  --session-timeout-sec "$SESSION_TIMEOUT" --session-cleanup-interval-sec 10
  --repairs "${SKYRL_TX_REPAIRS:-all}" --context-limit "$SKYRL_TX_CONTEXT_LIMIT" --keep-results-sec "$SKYRL_TX_KEEP_SEC"
  --keep-results-mb "$SKYRL_TX_KEEP_MB" --log-mb "$SKYRL_TX_LOG_MB" --sampler "$sampler")
if [ "$sampler" != jax ]; then
  command+=(--vllm-gpus "${VLLM_GPUS:-}" --vllm-mem "$VLLM_MEM" --vllm-max-deaths "$VLLM_MAX_DEATHS"
    --vllm-hang-sec "$VLLM_HANG_SEC"
    --vllm-cpu-replicas "$VLLM_CPU_REPLICAS" --vllm-flags="${VLLM_FLAGS:-}")
  if [ -n "${VLLM_URLS:-}" ]; then command+=(--external-inference-url "$VLLM_URLS"); fi
fi
command+=("$@")

if [ "$background" = false ]; then
  echo $$ >"$state/server.pid"
  exec "${command[@]}"
fi
start_in_background "$state" "$port" "${command[@]}"
