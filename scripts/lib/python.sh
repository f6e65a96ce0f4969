# shellcheck shell=bash
# Sourced by setup.sh: uv, a Python, and the two locked environments.

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
  if ! python3 -m pip --version >/dev/null 2>&1 && may_install; then
    apt_install python3 python3-pip || fail "python3-pip could not be installed; install uv by hand and run this again"
  fi
  # --target: works without a venv module, and where the system's Python refuses other installs (PEP 668)
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --target "$STATE/uv" uv >&2 ||
    fail "uv could not be installed with pip; install uv by hand (any way that puts it on the PATH) and run this again"
  UV="$STATE/uv/bin/uv"
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

# The package itself is installed editable: `harbortrainer` works in every folder.
ensure_trainer_env() {
  local venv="$ROOT/.venv" found
  ensure_env trainer "$venv" "$ROOT/requirements.lock"
  found="$(cd / && "$venv/bin/python" -c 'import harbortrainer; print(harbortrainer.__file__)' 2>/dev/null || true)"
  if [ "$found" = "$ROOT/src/harbortrainer/__init__.py" ] && [ -x "$venv/bin/harbortrainer" ]; then return; fi
  ensure_uv
  "$UV" pip install --quiet --no-deps --no-build-isolation --python "$venv/bin/python" --editable "$ROOT" >&2 ||
    fail "the package could not be installed into .venv (see above)"
}

ensure_server_env() {
  local lock="$ROOT/server/requirements.lock"
  if nvidia-smi >/dev/null 2>&1; then lock="$ROOT/server/requirements-cuda.lock"; fi
  ensure_env server "$ROOT/server/.venv" "$lock"
}
