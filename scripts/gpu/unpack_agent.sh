#!/usr/bin/env bash
# On the GPU machine without network: takes in the transfer of scripts/gpu/pack.sh --agent in whose folder it lies.
#   bash PREFIX1/unpack_agent.sh; bash PREFIX2/unpack_agent.sh; ...      in any order, before or after unpack.sh's
# When the last one is there: the agent's program is put into PROJECT/.state/agents, for agents_dir=.state/agents.
# Environment: AGENT_WORK (default ~/agent), PROJECT (~/harbortrainer).
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
WORK="${AGENT_WORK:-$HOME/agent}" PROJECT="${PROJECT:-$HOME/harbortrainer}"
# shellcheck source=/dev/null
source "$HERE/take_in.sh"

take_in
mkdir -p "$PROJECT/.state/agents"
unxz "$WORK/agent.tar.xz" | tar -x -C "$PROJECT/.state/agents" || fail "the agent could not be unpacked"
say "ready: agents_dir=.state/agents has $(cd "$PROJECT/.state/agents" && ls bin | paste -sd' ')"
