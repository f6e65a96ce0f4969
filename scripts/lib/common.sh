# shellcheck shell=bash
# Sourced by the scripts: where things are, and how they speak. Needs bash; sets ROOT and STATE.
# `harbortrainer NAME` of a wheel runs them with HARBORTRAINER_CALLER, the user's folder, which gets the results, and
# HARBORTRAINER_SPOKEN, a program of sed that names its commands instead of the scripts (src/harbortrainer/commands.py).
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
STATE="$ROOT/.state"

spoken() { if [ -n "${HARBORTRAINER_SPOKEN:-}" ]; then sed -E "$HARBORTRAINER_SPOKEN"; else cat; fi; }

say() { if [ -n "${HARBORTRAINER_SPOKEN:-}" ]; then printf '%s\n' "$*" | spoken >&2; else printf '%s\n' "$*" >&2; fi; }

# help_first "$@": where the first word asks for help, prints the comment at the top of the script and ends it.
help_first() {
  case "${1:-}" in -h | --help) ;; *) return ;; esac
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "$0" | spoken
  exit
}

# One line, then exit 1.
fail() {
  say "error: $*"
  exit 1
}

# Runs a command as root (sudo only where it asks no password); returns 1 where that is not allowed.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif sudo -n true 2>/dev/null; then sudo -n "$@"; else return 1; fi
}

may_install() {
  command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }
}

# apt_install PACKAGE...: quiet; output only when it fails. Package lists are fetched only when an install misses.
apt_install() {
  local log
  log="$(mktemp)"
  _apt_install "$@" >"$log" 2>&1 || { as_root apt-get update -qq >>"$log" 2>&1 && _apt_install "$@" >>"$log" 2>&1; } || {
    tail -n 5 "$log" >&2
    rm -f "$log"
    return 1
  }
  rm -f "$log"
}

_apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y -qq --no-install-recommends "$@"; }

file_hash() { sha256sum "$1" | cut -d' ' -f1; }

# port_free PORT [ADDRESS]: nothing listens there.
port_free() { ! (exec 3<>"/dev/tcp/${2:-127.0.0.1}/$1") 2>/dev/null; }

# The first free port at or above $1.
free_port() {
  local port=$1
  until port_free "$port"; do port=$((port + 1)); done
  echo "$port"
}
