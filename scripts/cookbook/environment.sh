# shellcheck shell=bash
# Sourced by run_cookbook_loop.sh and run_cookbook_recipes.sh: the recipes' own environment, and what a hub would give
# them. Needs lib/common.sh and lib/python.sh.
COOKBOOK_PYTHON=3.11 # requirements.lock holds the wheels of this one

# cookbook_sync VENV FLAG...: what the lock says, and nothing else.
cookbook_sync() {
  local venv=$1
  shift
  "$UV" pip sync --quiet --python "$venv/bin/python" "$@" "$ROOT/scripts/cookbook/requirements.lock"
}

# torch for CPUs is on no ordinary index: it comes from a folder of wheels where pip knows one, else from torch's own.
cookbook_install() {
  local venv=$1 folder links=()
  for folder in $(wheel_folders); do links+=(--find-links "$folder"); done
  if [ ${#links[@]} -gt 0 ] && cookbook_sync "$venv" "${links[@]}" 2>"$venv/install.log"; then return; fi
  cookbook_sync "$venv" --torch-backend cpu 2>>"$venv/install.log"
}

# ensure_cookbook_env VENV: holds exactly what the lock says.
ensure_cookbook_env() {
  local venv=$1 wanted began=$SECONDS
  wanted="$(file_hash "$ROOT/scripts/cookbook/requirements.lock")"
  if [ "$(cat "$venv/.lock-hash" 2>/dev/null)" = "$wanted" ]; then return; fi
  ensure_uv
  say "cookbook environment: Python $COOKBOOK_PYTHON and requirements.lock into ${venv#"$ROOT"/}"
  "$UV" venv --quiet --clear --python "$COOKBOOK_PYTHON" "$venv" >&2 || fail "no Python $COOKBOOK_PYTHON for the cookbook"
  cookbook_install "$venv" || {
    tail -n 5 "$venv/install.log" >&2
    fail "the cookbook's environment could not be made (see above, $venv/install.log); its torch is 2.13.0+cpu"
  }
  echo "$wanted" >"$venv/.lock-hash"
  say "cookbook environment ready in $((SECONDS - began)) s"
}

# ready_cookbook WORK: WORK/venv, data and policies are there, and servers and recipes find them without a hub.
ready_cookbook() {
  [ -x "$ROOT/.venv/bin/python" ] || fail "the trainer environment .venv is missing; run scripts/setup.sh"
  ensure_cookbook_env "$1/venv"
  (cd "$ROOT" && .venv/bin/python -m scripts.cookbook.make_hub "$1" 2>/dev/null) || fail "the recipes' data could not be made in $1"
  export HF_HOME="$1/hub" HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1
  export TINKER_API_KEY="${SKYRL_TX_API_KEY:-tml-none}" TINKER_TELEMETRY=0 WANDB_MODE=offline
}
