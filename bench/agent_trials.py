"""What a trial of an agent in a container costs beside the agent's own work, with many of them at once.

    python -m bench.agent_trials [--agent mini-swe-agent] [--trials 64] [--turns 5] [--write]

Real containers without a network, a scripted policy that answers at once. Overhead: seconds for the environment's
start, the agent's setup and the trial's end, waits for a slot not counted. All trials run at once, as with
n_parallel_envs=64. Own CPU is this process's, Docker's client and the model API included. --write puts the table into
bench/RESULTS.md.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import report
from harbortrainer.bundled.agents.session import AgentService
from harbortrainer.config import Config
from harbortrainer.docker.daemon import Daemon
from harbortrainer.docker.keeping import cleaning
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.gates import Gates
from harbortrainer.rollout.venue import RunParts
from harbortrainer.venues.harbor.trial import LocalHost
from tests.support.agent_endings import RUN
from tests.support.agent_shells import AGENTS, HELLO, PACK, demand_packed, script
from tests.support.fakes import Request, ScriptedClient
from tests.support.families import QWEN_TOOLS, chat_of
from tests.support.trial_parts import make_task, request

OVERHEAD = ("environment", "agent_setup", "teardown")
HEADINGS = (
    *("agent", "trials at once", "turns", "overhead, median", "worst"),
    *("agent's phase, median", "all", "own CPU a trial"),
)
MOST_OVERHEAD_SEC = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", default="mini-swe-agent", choices=AGENTS)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    arguments = parser.parse_args()
    demand_packed([arguments.agent])
    with tempfile.TemporaryDirectory(prefix="bench-agent-trials-") as folder:
        began, cpu = time.monotonic(), time.process_time()
        done = asyncio.run(trials(Path(folder), arguments.agent, arguments.trials, arguments.turns))
        seconds, cpu = time.monotonic() - began, (time.process_time() - cpu) / arguments.trials
    overhead = sorted(sum(one.times.get(name, 0.0) for name in OVERHEAD) for one in done)
    failed = [f"{one.trial_name}: {one.outcome}: {one.detail}" for one in done if one.outcome is not Outcome.COMPLETED]
    wrong = failed + [f"overhead {median(overhead):.1f} s"] * (median(overhead) > MOST_OVERHEAD_SEC)
    row = [arguments.agent, str(arguments.trials), str(arguments.turns)]
    row += [f"{median(overhead):.1f} s", f"{overhead[-1]:.1f} s", f"{median(one.times['agent'] for one in done):.1f} s"]
    row += [f"{seconds:.0f} s", f"{1000 * cpu:.0f} ms"]
    document = report.RESULTS if arguments.write else None
    report.publish("bench.agent_trials", "agent-trials", HEADINGS, [row], document, wrong=wrong)


async def trials(folder: Path, agent: str, count: int, turns: int) -> Sequence[Trajectory]:
    """All at once, from starts that are limited as in a run."""
    template = chat_of(QWEN_TOOLS)
    said = script(agent, [HELLO] * (turns - 1))
    client, sampler = ScriptedClient(lambda asked: said[_turn(asked, template)], template), PolicySampler(attempts=1)
    sampler.publish(client, 0)
    given: dict[str, Any] = {
        "model_name": "fake/policy", "tasks_dir": ".", "agent": agent, "agents_dir": str(PACK),
        "n_parallel_envs": count, "context_limit": 300_000, "trial_timeout_sec": 1800.0,
    }  # fmt: skip
    config = Config(**given)
    service, task = AgentService.of(template), make_task(folder, agent_timeout=1200.0)
    host = LocalHost(
        RunParts(config, sampler, template, RUN, Gates.of(config)), Daemon(config.outage_limit_sec), agents=service
    )
    try:
        async with service.endpoint:
            names = [f"b-{number}" for number in range(count)]
            return await asyncio.gather(*(host.run(request(task, folder, name)) for name in names))
    finally:
        await cleaning.drain()


def _turn(asked: Request, template: ChatTemplate) -> int:
    """How many answers the prompt holds."""
    return str(template.tokenizer.decode(asked.prompt_T)).count("<|im_start|>assistant") - 1


if __name__ == "__main__":
    main()
