"""How trials of agents end, and how long an agent goes on after its trial's limit.

    python -m bench.agent_endings [--agents mini-swe-agent,codex] [--endings "ok,max turns"] [--write]

The trials of tests/integration/test_agent_endings.py: real programs in containers without a network, a scripted policy.
Beyond the limit: seconds from the limit to the end of the agent's phase. --write puts the table into bench/RESULTS.md.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path

from bench import report
from tests.support.agent_endings import CASES, Ended, run_all, small, small_compacting
from tests.support.agent_shells import AGENTS, demand_packed

MOST_BEYOND_SEC = 6.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", default=",".join(agent for agent in AGENTS if AGENTS[agent].full))
    parser.add_argument("--endings", default=",".join(CASES).replace("context, may compact", "context+"))
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    arguments = parser.parse_args()
    agents = arguments.agents.split(",")
    demand_packed(agents)
    names = [name.replace("context+", "context, may compact") for name in arguments.endings.split(",")]
    keys = [(agent, name) for name in names for agent in agents]
    _demand_full(keys)
    with tempfile.TemporaryDirectory(prefix="bench-endings-") as folder:
        found = asyncio.run(run_all(Path(folder), keys))
    wrong = [f"{agent}: {name}" for (agent, name), ended in found.items() if not _as_named(name, ended)]
    rows = [[name, *(_cell(found[agent, name]) for agent in agents)] for name in names]
    document = report.RESULTS if arguments.write else None
    report.publish("bench.agent_endings", "agent-endings", ["ending", *agents], rows, document, wrong=wrong)


def _demand_full(keys: Iterable[tuple[str, str]]) -> None:
    """End the program with a line that names the first (agent, ending) that lacks the `Shell.full` it needs."""
    for agent, name in keys:
        if CASES[name].fields in (small, small_compacting) and not AGENTS[agent].full:
            raise SystemExit(f"error: no full context of {agent} is known (Shell.full); leave out {name!r}, or {agent}")


def _as_named(name: str, ended: Ended) -> bool:
    case = CASES[name]
    same = (ended.trajectory.outcome, ended.trajectory.reward) == (case.outcome, case.reward)
    return same and (ended.beyond is None or ended.beyond <= MOST_BEYOND_SEC)


def _cell(ended: Ended) -> str:
    beyond = "" if ended.beyond is None else f", {max(0.0, ended.beyond):.1f} s beyond"
    return f"`{ended.trajectory.outcome}`{beyond}"


if __name__ == "__main__":
    main()
