#!/usr/bin/env bash
# On the GPU machine without network: takes in the transfer of scripts/gpu/pack.sh --agent in whose folder it lies.
#   bash PREFIX1/unpack_agent.sh; bash PREFIX2/unpack_agent.sh; ...      in any order, before or after unpack.sh's
# When the last one is there: the agent's program is put into PROJECT/.state/agents, for agents_dir=.state/agents.
# Environment: AGENT_WORK (default ~/agent), PROJECT (~/harbortrainer).
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
WORK="${AGENT_WORK:-$HOME/agent}" PROJECT="${PROJECT:-$HOME/harbortrainer}" began=$SECONDS
say() { echo "[$((SECONDS - began)) s] $*"; }
fail() { say "FAILED: $*" && exit 1; }

take_in() {
  mkdir -p "$WORK"
  cmp -s "$HERE/parts" "$WORK/parts" || { rm -f "$WORK"/part.* && cp "$HERE/parts" "$WORK/"; } # of another packing
  cp "$HERE"/part.* "$WORK/"
  while read -r sum part; do
    if [ ! -f "$WORK/$part" ]; then say "$(basename "$HERE") taken in; still missing: $part" && exit 0; fi
    echo "$sum  $WORK/$part" | sha256sum --check --quiet || fail "$part is damaged; send its transfer again"
  done <"$WORK/parts"
  cat "$WORK"/part.[0-9]* | tar -x -C "$WORK"
  say "all transfers are here"
}

# Not every machine has xz; Python has it.
unxz() { python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer, 1 << 20)' "$1"; }

take_in
mkdir -p "$PROJECT/.state/agents"
unxz "$WORK/agent.tar.xz" | tar -x -C "$PROJECT/.state/agents" || fail "the agent could not be unpacked"
say "ready: agents_dir=.state/agents has $(cd "$PROJECT/.state/agents" && ls bin | paste -sd' ')"
