# shellcheck shell=bash
# Sourced by start_skyrl_tx.sh and stop_skyrl_tx.sh: one server, its folder and its process.

server_state() {
  local state="${SKYRL_TX_STATE:-$STATE/server-$1}"
  case "$state" in /*) echo "$state" ;; *) echo "$ROOT/$state" ;; esac
}

# The command that stops the server on port $1.
stop_command() { echo "${SKYRL_TX_STATE:+SKYRL_TX_STATE=$SKYRL_TX_STATE }scripts/stop_skyrl_tx.sh $1"; }

# Prints the id of the live server whose folder is $1; returns 1 when there is none.
server_pid() {
  local pid
  pid="$(cat "$1/server.pid" 2>/dev/null)" && is_server "$pid" && echo "$pid"
}

# An id may have been given to another program since.
is_server() { tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" | grep -q 'server/launch\.py'; }

# SIGTERM, and SIGKILL after 5 s. The engine dies with its API.
stop_server() {
  kill -TERM "$1" 2>/dev/null || return 0
  for _ in $(seq 50); do
    if ! is_server "$1"; then return; fi
    sleep 0.1
  done
  kill -KILL "$1" 2>/dev/null || true
}

require_server_env() {
  [ -x "$ROOT/server/.venv/bin/python" ] || fail "the server's environment server/.venv is missing; run scripts/setup.sh --server"
}

# Prints the name under which MODEL is served: as given, without ./ and trailing /.
resolve_model() {
  local model="${1#./}"
  model="${model%/}"
  if [ ! -d "$model" ] && [ -d "$CALLER/$model" ]; then model="$(cd "$CALLER/$model" && pwd)"; fi
  if [ ! -d "$model" ] && ! [[ "$model" =~ ^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$ && "$model" != models/* ]]; then
    fail "model '$1': no such directory in $ROOT, and not a hub name (OWNER/NAME)"
  fi
  if [[ "${model//[!\/]/}" = "//" ]]; then
    fail "model '$1': the tinker SDK cuts a name with exactly two slashes; move or link the directory so that its name has one, or three and more"
  fi
  echo "$model"
}

require_free_port() {
  local pid _
  for _ in {1..10}; do # a server that was just killed may need a moment to let go
    if port_free "$1"; then return; fi
    sleep 0.2
  done
  if pid="$(server_pid "$(server_state "$1")")"; then
    fail "port $1: a server of scripts/start_skyrl_tx.sh runs there (process $pid); stop it with $(stop_command "$1"), or set SKYRL_TX_PORT"
  fi
  fail "port $1 is in use by another program; set SKYRL_TX_PORT to a free one"
}

# require_whole NAME VALUE LEAST: a whole number of LEAST or more.
require_whole() {
  [[ "$2" =~ ^(0|[1-9][0-9]{0,9})$ ]] && [ "$2" -ge "$3" ] || fail "$1=$2: must be a whole number, $3 or more"
}

# Sets the variable $1 to $2 where it is unset or empty; fails unless it is a whole number from $3 on.
whole_setting() {
  printf -v "$1" %s "${!1:-$2}"
  require_whole "$1" "${!1}" "$3"
}

# Checks the settings that only the server would refuse, with a traceback or a page of usage.
require_settings() {
  whole_setting MAX_LORA_ADAPTERS 4 2 # one of them is the base model's
  whole_setting MAX_LORA_RANK 32 1
  whole_setting TRAIN_MICRO_BATCH_SIZE 8 0
  whole_setting SAMPLE_MAX_NUM_SEQUENCES 16 0
  whole_setting SESSION_TIMEOUT 60 1
  whole_setting SKYRL_TX_CONTEXT_LIMIT 0 0
  whole_setting SKYRL_TX_KEEP_SEC 900 1
  whole_setting SKYRL_TX_KEEP_MB 1024 1
  whole_setting SKYRL_TX_LOG_MB 64 1
  whole_setting VLLM_HANG_SEC 0 0
  whole_setting VLLM_MAX_DEATHS 3 1
  whole_setting VLLM_CPU_REPLICAS 1 1
  GRADIENT_CHECKPOINTING="${GRADIENT_CHECKPOINTING:-true}" FRESH="${FRESH:-0}" VLLM_MEM="${VLLM_MEM:-0}"
  [[ "$GRADIENT_CHECKPOINTING" =~ ^(true|false)$ ]] || fail "GRADIENT_CHECKPOINTING=$GRADIENT_CHECKPOINTING: must be true or false"
  [[ "$FRESH" =~ ^[01]$ ]] || fail "FRESH=$FRESH: must be 1 or 0"
  [[ "$VLLM_MEM" =~ ^(0|0?\.[0-9]+|1|1\.0+)$ ]] || fail "VLLM_MEM=$VLLM_MEM: must be a share of a GPU's memory, such as 0.45"
}

# One server at a time uses the folder $1: the lock is open until this process and the server, which inherits it, have ended.
lock_state() {
  local pid
  mkdir -p "$1"
  exec 9>"$1/lock"
  if flock -w 2 9; then return; fi # a server that was just killed may need a moment to let go
  pid="$(server_pid "$1")" || true
  fail "SKYRL_TX_STATE=$1: a server uses this folder (process ${pid:-unknown}); stop it with SKYRL_TX_STATE=$1 scripts/stop_skyrl_tx.sh, or set another SKYRL_TX_STATE"
}

# GPUs where nvidia-smi works, those of CUDA_VISIBLE_DEVICES where it is set; else the CPU, which JAX splits into TP devices.
choose_device() {
  local gpus visible
  if gpus="$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" && [ "$gpus" -gt 0 ] && [ "${JAX_PLATFORMS:-}" != cpu ]; then
    [ "$1" -le "$gpus" ] || fail "TP $1: this machine has $gpus GPU(s); give a TP of at most $gpus"
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
      visible="$(tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)"
      [ "$1" -le "$visible" ] || fail "TP $1: CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES shows $visible GPU(s); give a TP of at most $visible"
    fi
    return
  fi
  export JAX_PLATFORMS=cpu
  if [ "$1" -gt 1 ]; then export JAX_NUM_CPU_DEVICES="$1"; fi
}

# default_sampler TP: after choose_device. auto = server/sampler_memory.py finds out whether vLLM fits beside the trainer.
default_sampler() {
  if [ -n "${VLLM_URLS:-}${VLLM_GPUS:-}" ]; then
    echo vllm
  elif [ "${JAX_PLATFORMS:-}" != cpu ] && [ "$1" = 1 ] && [ -x "$ROOT/server/vllm/.venv/bin/python" ]; then
    echo auto
  else
    echo jax
  fi
}

# choose_sampler SAMPLER TP: after choose_device. Divides the GPUs between trainer and vLLM.
choose_sampler() {
  local gpus visible left shared name
  case "$1" in
    auto) return ;;
    jax)
      for name in VLLM_URLS VLLM_GPUS; do
        [ -z "${!name:-}" ] || fail "$name=${!name}: SAMPLER=jax samples without vLLM; unset $name, or SAMPLER"
      done
      # the rest is for cuDNN's and cuBLAS's own memory; JAX would take three quarters
      if [ "${JAX_PLATFORMS:-}" != cpu ]; then export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}"; fi
      return
      ;;
    vllm) ;;
    *) fail "SAMPLER=$1: jax or vllm" ;;
  esac
  if [ -n "${VLLM_URLS:-}" ]; then return; fi
  [ -x "$ROOT/server/vllm/.venv/bin/python" ] || fail "SAMPLER=vllm: the environment server/vllm/.venv is missing; run scripts/setup.sh --sampler"
  if [ "${JAX_PLATFORMS:-}" = cpu ]; then
    [ -z "${VLLM_GPUS:-}" ] || fail "VLLM_GPUS=$VLLM_GPUS: this server runs on the CPU; unset VLLM_GPUS"
    return
  fi
  if [ -z "${VLLM_GPUS:-}" ]; then return; fi
  [[ "$VLLM_GPUS" =~ ^[0-9]+(,[0-9]+)*$ ]] || fail "VLLM_GPUS=$VLLM_GPUS: numbers of GPUs with commas between, such as 1,2"
  gpus="$(nvidia-smi --query-gpu=index --format=csv,noheader)"
  for gpu in ${VLLM_GPUS//,/ }; do
    grep -qx "$gpu" <<<"$gpus" || fail "VLLM_GPUS=$VLLM_GPUS: this machine has no GPU $gpu, only" $gpus
  done
  # the trainer keeps to CUDA_VISIBLE_DEVICES; VLLM_GPUS are numbers of the machine; it shares where it has too few of its own
  visible="$(tr , '\n' <<<"${CUDA_VISIBLE_DEVICES:-$gpus}")"
  left="$(grep -vxF "$(tr , '\n' <<<"$VLLM_GPUS")" <<<"$visible")" || true
  if [ "$(grep -c . <<<"$left")" -lt "$2" ]; then
    shared="$(grep -xF "$(tr , '\n' <<<"$VLLM_GPUS")" <<<"$visible")" || true
    left="$(printf '%s\n%s\n' "$left" "$shared" | grep . | head -n "$2")"
  fi
  left="$(paste -sd, <<<"$left")"
  export CUDA_VISIBLE_DEVICES="$left"
}

# require_key STATE HOST: exports SKYRL_TX_API_KEY for a server that others can reach; makes the key once, for its owner only.
require_key() {
  local file="$1/api_key"
  if [ -n "${SKYRL_TX_API_KEY:-}" ]; then
    export SKYRL_TX_API_KEY
    return
  fi
  case "$2" in 127.* | localhost | ::1) return ;; esac
  if [ ! -s "$file" ]; then (umask 077 && printf 'tml-%s\n' "$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')" >"$file"); fi
  SKYRL_TX_API_KEY="$(cat "$file")"
  export SKYRL_TX_API_KEY
  say "the server listens on $2 and requires a key: set SKYRL_TX_API_KEY where you train to the content of $file"
}

forget_state() {
  say "FRESH=1: deleting database and checkpoints in $1"
  rm -rf "$1/checkpoints" "$1"/tinker.db "$1"/tinker.db-shm "$1"/tinker.db-wal
}

# drop_old_programs FOLDER: deletes the compiled programs that were read longest ago, beyond PROGRAMS_BYTES. JAX's own limit
# (JAX_COMPILATION_CACHE_MAX_SIZE) reads a file for each program there is whenever one is added, and all servers wait meanwhile.
drop_old_programs() {
  if [ ! -d "$1" ]; then return; fi
  # another start may delete some at the same time
  find "$1" -maxdepth 1 -name '*-cache' -printf '%A@ %s %p\0' 2>/dev/null | sort -znr |
    awk -v RS='\0' -v ORS='\0' -v most="${PROGRAMS_BYTES:-4294967296}" \
      '{ bytes += $2; if (bytes > most) { sub(/^[^ ]* [^ ]* /, ""); print } }' | xargs -0r rm -f || true
}

# start_in_background STATE PORT COMMAND...: returns when the server is ready; shows the end of its log when it is not to be.
# server/logs.py writes the log and server.ready, and ends when the server and all that it started have.
start_in_background() {
  local state=$1 port=$2 log="$1/server.log" ready="$1/server.ready" pid writer
  shift 2
  rm -f "$log".[0-9] "$ready"
  : >"$log"
  exec 8> >(exec setsid "$ROOT/server/.venv/bin/python" "$ROOT/server/logs.py" "$log" "$SKYRL_TX_LOG_MB" "$ready" 9>&- >/dev/null 2>&1)
  writer=$!
  setsid "$@" >&8 2>&1 8>&- </dev/null &
  pid=$!
  exec 8>&-
  echo "$pid" >"$state/server.pid"
  trap 'stop_server "$pid"; exit 130' INT TERM
  until grep '^ready: ' "$ready" 2>/dev/null; do
    if ! kill -0 "$pid" 2>/dev/null; then
      if [ ! -f "$state/server.pid" ]; then fail "the server was stopped while it started"; fi
      rm -f "$state/server.pid"
      until_gone "$writer"
      tail -n 15 "$log" >&2
      fail "the server did not start; its whole log: $log"
    fi
    sleep 0.2
  done
  say "log: $log; stop it with $(stop_command "$port")"
}

# Waits for a process, 5 s at most.
until_gone() {
  for _ in $(seq 50); do
    if ! kill -0 "$1" 2>/dev/null; then return; fi
    sleep 0.1
  done
}

# Prints the URL of the ready server whose folder is $1 (started with --background); returns 1 while it is not ready.
ready_url() { sed -n 's/^ready: \([^ ]*\) .*/\1/p' "$1/server.ready" 2>/dev/null | grep .; }
