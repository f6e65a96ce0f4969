"""What the protection of rewards adds to an honest trial's verification.

    python -m bench.verification [--parallel 8] [--rounds 10]

Two kinds of containers take turns: one whose phase is closed and whose verification is watched, and one that is
verified as it is. The rows below are parts of a watched trial. Seconds are medians of the trials; CPU is of this
process, of its children (the watcher, and the runtime that starts a shell), and of Docker with what it started, a
trial. Leave the machine alone meanwhile.

The second table: what a system call of any other process costs while processes of a policy are traced.
"""

import argparse
import asyncio
import contextlib
import itertools
import logging
import math
import os
import resource
import statistics
import subprocess
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from bench import report
from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.integrity.again import Again
from harbortrainer.docker.integrity.traces import Traces
from harbortrainer.docker.keeping import cleaning
from harbortrainer.docker.keeping.cleaning import reap
from tests.support.docker_parts import started
from tests.support.task_folder import write_task

RUN_ID = "bench-verification"
HEADINGS = ("", "s a trial", "slowest", "own CPU ms", "children's", "Docker's")
DOCKER = ("dockerd", "containerd", "containerd-shim")
WORK = "echo Hello > hello.txt; mkdir -p /app/src; for i in $(seq 200); do echo x > /app/src/$i.txt; done"
TESTS = "for i in $(seq 50); do cat /app/hello.txt; done > /dev/null"  # of the verifier
CALLS, ROUNDS = 100_000, 30  # of a system call
PLAIN, WATCHED = "not watched", "watched"
KINDS = (PLAIN, WATCHED)
PARTS = ("close the agent's phase", "begin to watch", "start a shell", "verify", "end to watch", "find causes")


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
    _calls()


def _calls() -> None:
    """Nanoseconds of a system call, the least of several rounds, while another process is traced and while not."""
    traces = Traces()
    off, trace = _call_ns(), traces.lend()
    with subprocess.Popen(["sleep", "600"]) as other:
        if trace is not None:
            trace.follow({other.pid})
        on = _call_ns()
        other.kill()
    if trace is not None:
        traces.give_back(trace)
    traces.close()
    rows = [[traces.why or "traced", f"{on:.0f}"], ["not traced", f"{off:.0f}"]]
    report.publish("bench.verification", "a system call of another process", ("", "ns"), rows, None)


def _call_ns() -> float:
    least = math.inf
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            os.getppid()
        least = min(least, (time.perf_counter_ns() - began) / CALLS)
    return least


async def _run(arguments: argparse.Namespace) -> None:
    seconds: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    cpu: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        task = write_task(Path(folder) / "task")
        for number in range(-1, arguments.rounds):  # the first builds the image, starts the watcher and fills caches
            for kind in KINDS:
                took, used = await _batch(task, kind, arguments.parallel)
                if number >= 0:
                    seconds[kind] += took
                    cpu[kind].append(used)
        await cleaning.drain()
    rows = []
    for kind, took in seconds.items():
        used = [f"{statistics.median(each):.1f}" for each in zip(*cpu[kind], strict=True)]
        rows.append([kind, *_summary([sum(parts) for parts in took]), *used])
    rows += [
        [f"  {part}", *_summary(list(took)), "", "", ""]
        for part, took in zip(PARTS, zip(*seconds[WATCHED], strict=True), strict=True)
    ]
    report.publish("bench.verification", "protection of rewards", HEADINGS, rows, None)


def _summary(took: list[float]) -> list[str]:
    return [f"{statistics.median(took):.3f}", f"{max(took):.3f}"]


async def _batch(task: Path, kind: str, parallel: int) -> tuple[list[list[float]], list[float]]:
    """Seconds of each trial's parts, all verified at once; CPU ms a trial as in HEADINGS."""
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(started(task, RUN_ID)) for _ in range(parallel)]
        for environment in running:
            await environment.exec(WORK, user="root")
        own, children, docker = time.process_time(), _children_cpu(), _docker_cpu()
        took = await asyncio.gather(*(_verified(one, watched=kind == WATCHED) for one in running))
        own, children = time.process_time() - own, _children_cpu() - children
        dockers = sum(seconds - docker.get(pid, seconds) for pid, seconds in _docker_cpu().items())
        return took, [1000 * seconds / parallel for seconds in (own, children, dockers)]


def _children_cpu() -> float:
    """Seconds of this process' children, which are the watcher, or were."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = " ".join(file.read_text() for file in Path("/proc/self/task").glob("*/children"))
    living = sum(time.clock_gettime(~int(pid) << 3 | 2) for pid in children.split())  # clock_getcpuclockid(3)
    return ended.ru_utime + ended.ru_stime + living


def _docker_cpu() -> dict[str, float]:
    """Seconds of the daemon, containerd and each shim, and of what they started that has ended."""
    seconds = dict[str, float]()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            head, _, rest = (folder / "stat").read_text().rpartition(")")
            if head.partition("(")[2] in DOCKER:
                seconds[folder.name] = sum(map(int, rest.split()[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


async def _verified(environment: DockerEngineEnvironment, *, watched: bool) -> list[float]:
    times = [time.monotonic()]
    if watched:
        await environment.close_agent_phase(final=True)
        times.append(time.monotonic())
        async with environment.watched() as sight:
            times.append(time.monotonic())
            await environment.exec("true", user="root")  # the agent may have changed the one that was open
            times.append(time.monotonic())
            await environment.exec(TESTS, user="root")
            times.append(time.monotonic())
        times.append(time.monotonic())
        await Again(environment).causes(sight.seen)
    else:
        await environment.exec(TESTS, user="root")
    times.append(time.monotonic())
    return [after - before for before, after in itertools.pairwise(times)]


if __name__ == "__main__":
    main()
