"""What the protection of rewards adds to a trial before its verifier runs.

    python -m bench.verification [--parallel 8] [--rounds 10]

Three kinds of containers take turns: nothing put back and nothing looked at (the agent's processes end and the folders
of tests and rewards are made again, no more), an honest trial, and one in which twenty system paths are put back.
Seconds are medians of the trials; CPU is this process' own, a trial. Leave the machine alone meanwhile.
"""

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from unittest.mock import patch

from bench import report
from harbortrainer.docker import agent_phases, cleaning
from harbortrainer.docker.cleaning import reap
from harbortrainer.docker.environment import DockerEngineEnvironment
from harbortrainer.docker.layer import layer_of
from harbortrainer.docker.restore import Stamps, Survey
from harbortrainer.docker.system import Place
from tests.support.docker_parts import started
from tests.support.task_folder import write_task

RUN_ID = "bench-verification"
HEADINGS = ("", "s a trial", "slowest", "own CPU ms a trial")
WORK = "echo Hello > hello.txt; mkdir -p /app/src; for i in $(seq 200); do echo x > /app/src/$i.txt; done"
ATTACK = f"{WORK}; for i in $(seq 19); do echo x > /usr/local/bin/tool-$i; done; echo x > /usr/bin/tac"
UNPROTECTED = "unprotected"
KINDS = {UNPROTECTED: WORK, "honest": WORK, "twenty paths put back": ATTACK}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parallel", type=int, default=8, help="trials at once")
    parser.add_argument("--rounds", type=int, default=10, help="of as many trials of each kind")
    arguments = parser.parse_args()
    logging.getLogger("harbortrainer").setLevel(logging.ERROR)  # without a line for each trial
    try:
        asyncio.run(_run(arguments))
    finally:
        reap(RUN_ID)


async def _run(arguments: argparse.Namespace) -> None:
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    cpu: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        task = write_task(Path(folder) / "task")
        for number in range(-1, arguments.rounds):  # the first builds the image and fills caches
            for kind, script in KINDS.items():
                took, own = await _batch(task, kind, script, arguments.parallel)
                if number >= 0:
                    seconds[kind] += took
                    cpu[kind].append(1000 * own / len(took))
        await cleaning.drain()
    rows = [
        [kind, f"{statistics.median(took):.3f}", f"{max(took):.3f}", f"{statistics.median(cpu[kind]):.1f}"]
        for kind, took in seconds.items()
    ]
    report.publish("bench.verification", "protection of rewards", HEADINGS, rows, None)


async def _batch(task: Path, kind: str, script: str, parallel: int) -> tuple[list[float], float]:
    """Seconds of each trial, all closed at once, and the CPU seconds of this process meanwhile."""
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(started(task, RUN_ID)) for _ in range(parallel)]
        for environment in running:
            await environment.exec(script, user="root")
        if kind == UNPROTECTED:
            stack.enter_context(patch.object(agent_phases, "survey", _nothing))
            stack.enter_context(patch.object(agent_phases, "_DEVICES", ""))
        cpu = time.process_time()
        took = await asyncio.gather(*map(_closed, running))
        return took, time.process_time() - cpu


async def _closed(environment: DockerEngineEnvironment) -> float:
    began = time.monotonic()
    await environment.close_agent_phase(final=True)
    return time.monotonic() - began


def _nothing(container: str, place: Place, _: Stamps) -> Survey:
    layer = layer_of(container)
    assert layer is not None
    return Survey(layer, place, ())


if __name__ == "__main__":
    main()
