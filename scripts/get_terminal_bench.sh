#!/usr/bin/env bash
# Fetches Terminal-Bench 2 through Harbor's registry into a folder of datasets/, with digests of its tasks; when it is there,
# checks them. Without the internet: one line and exit status 2.
#   scripts/get_terminal_bench.sh [2.0 | 2.1 | NAME@VERSION] [to=FOLDER] [registry=FILE_OR_URL]     (default: 2.0)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_first "$@"
cd "${HARBORTRAINER_CALLER:-$ROOT}"
python=$ROOT/.venv/bin/python
[ -x "$python" ] || python=python

wanted=2.0
if [ $# -gt 0 ] && [[ $1 != *=* ]]; then
  wanted=$1
  shift
fi
case $wanted in
  2.0) name=terminal-bench@2.0 folder=terminal-bench-2 ;;
  2.1) name=terminal-bench/terminal-bench-2-1@latest folder=terminal-bench-2-1 ;;
  *@*) name=$wanted folder=$(basename "${wanted%@*}") ;;
  *) echo "get_terminal_bench.sh: unknown version '$wanted'; give 2.0, 2.1 or NAME@VERSION of the registry" >&2; exit 2 ;;
esac
exec "$python" -m src.tasks get "$name" to="datasets/$folder" "$@"
