"""What the protection of rewards adds to an honest trial's verification.

    python -m bench.verification [--parallel 8] [--rounds 10]

Two kinds of containers take turns: one whose phase is closed and whose verification is watched, and one that is
verified as it is. Seconds are medians of the trials; CPU is this process' own, a trial. Leave the machine alone
meanwhile.
"""

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from bench import report
from harbortrainer.docker import cleaning
from harbortrainer.docker.again import Again
from harbortrainer.docker.cleaning import reap
from harbortrainer.docker.environment import DockerEngineEnvironment
from tests.support.docker_parts import started
from tests.support.task_folder import write_task

RUN_ID = "bench-verification"
HEADINGS = ("", "s a trial", "slowest", "own CPU ms a trial")
WORK = "echo Hello > hello.txt; mkdir -p /app/src; for i in $(seq 200); do echo x > /app/src/$i.txt; done"
TESTS = "for i in $(seq 50); do cat /app/hello.txt; done > /dev/null"  # of the verifier
PLAIN, WATCHED = "not watched", "watched"
KINDS = (PLAIN, WATCHED)


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
            for kind in KINDS:
                took, own = await _batch(task, kind, arguments.parallel)
                if number >= 0:
                    seconds[kind] += took
                    cpu[kind].append(1000 * own / len(took))
        await cleaning.drain()
    rows = [
        [kind, f"{statistics.median(took):.3f}", f"{max(took):.3f}", f"{statistics.median(cpu[kind]):.1f}"]
        for kind, took in seconds.items()
    ]
    report.publish("bench.verification", "protection of rewards", HEADINGS, rows, None)


async def _batch(task: Path, kind: str, parallel: int) -> tuple[list[float], float]:
    """Seconds of each trial, all verified at once, and the CPU seconds of this process meanwhile."""
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(started(task, RUN_ID)) for _ in range(parallel)]
        for environment in running:
            await environment.exec(WORK, user="root")
        cpu = time.process_time()
        took = await asyncio.gather(*(_verified(one, watched=kind == WATCHED) for one in running))
        return took, time.process_time() - cpu


async def _verified(environment: DockerEngineEnvironment, *, watched: bool) -> float:
    began = time.monotonic()
    if watched:
        await environment.close_agent_phase(final=True)
        async with environment.watched() as sight:
            await environment.exec(TESTS, user="root")
        await Again(environment).causes(sight.seen)
    else:
        await environment.exec(TESTS, user="root")
    return time.monotonic() - began


if __name__ == "__main__":
    main()
