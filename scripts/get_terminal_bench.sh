#!/usr/bin/env bash
# Fetches terminal-bench 2.0 through Harbor's registry into datasets/terminal-bench-2, with digests of its tasks; when it is
# there, checks them. Without the internet: one line and exit status 2. More: registry=FILE_OR_URL, to=FOLDER.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
[ -x "$python" ] || python=python

exec "$python" -m src.tasks get terminal-bench@2.0 to=datasets/terminal-bench-2 "$@"
