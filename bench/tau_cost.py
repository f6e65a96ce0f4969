"""What a conversation of tau-bench costs the trainer's process, beside sampling.

    python -m bench.tau_cost [--write]

Gold conversations of tau:retail and tau:airline with a scripted policy: no server, no Docker. It takes 12 s of CPU.
Batches of 64 trials, all at once, go through the run's own limits, journal and files. Exit status 1 when a bar is
missed. --write puts the table into bench/RESULTS.md.
"""

import argparse
import asyncio
import gc
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench import report
from harbortrainer.bundled.tau.domain import Domain, domain
from harbortrainer.bundled.tau.exchange import Dialogue
from harbortrainer.bundled.tau.grade import grade
from harbortrainer.policy.solution import SolutionClient, Solutions
from harbortrainer.policy.tools import ToolCall
from harbortrainer.tasks.sources import find_sources, load_sources
from harbortrainer.tasks.task import Task
from tests.support.tau_parts import gold_batch

DOMAINS = ("retail", "airline")
AT_ONCE = 64
SLEEP_SEC = 0.005
ANSWER_SEC = (0.5, 1.5)  # least and most, as from a server
HEADINGS = ("", "measured", "at most")
BELOW = """
CPU time of the process, but for memory and wall time. Memory: databases and messages, without token ids. A turn and a
trial: all of a batch's CPU, divided (prompts, tools, user, grade, journal, files, scripted policy, clocks). The
tests' small tokenizer makes 3.3 times as many tokens of a first prompt as Qwen3's. Longest wait: how late a task wakes
that sleeps 5 ms, in wall time or in the CPU time that the process took meanwhile, whichever is shorter. With answers at
once all conversations are always ready, so there it has no bar.
"""
IMPORTS = """
import json, sys, time
import harbortrainer.training.session
from harbortrainer.bundled.tau.package import module
known = sum(name.partition(".")[0] == "tau2" for name in sys.modules)
began = time.process_time()
for name in ("data_model.message", "data_model.tasks", "domains.retail.environment", "domains.airline.environment"):
    module(name)
print(json.dumps([known, time.process_time() - began]))
"""


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    value: float
    unit: str
    bar: float | None = None

    @property
    def missed(self) -> bool:
        return self.bar is not None and self.value > self.bar

    @property
    def cells(self) -> list[str]:
        value = f"{self.value:.0f}" if self.value >= 100 else f"{self.value:.3g}"
        return [self.what, f"{value} {self.unit}".strip(), "" if self.bar is None else f"{self.bar:g}"]


class SlowClient(SolutionClient):
    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        await asyncio.sleep(random.uniform(*ANSWER_SEC))
        return await super().sample(prompt, num_samples, sampling_params)


class SlowSolutions(Solutions):
    """Each answer takes ANSWER_SEC."""

    def of_trial(self, task: Path | str) -> SolutionClient:
        return SlowClient(self.completions[task])


@dataclass(frozen=True, slots=True)
class Batch:
    """`cpu`: seconds; `waits`: wall seconds that a task woke late, and the process's CPU seconds meanwhile."""

    cpu: float
    turns: int
    rewards: list[float | None]
    waits: list[tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    arguments = parser.parse_args()
    rows = imports()
    began = time.process_time()
    tasks = load_sources(find_sources(",".join(f"tau:{name}" for name in DOMAINS)))
    for place in map(domain, DOMAINS):
        for key in place.data.tasks:
            place.gold(place.task(key))
    rows.append(Row("load both domains and their gold end states", time.process_time() - began, "s"))
    rows += [row for name in DOMAINS for row in environments(domain(name))]
    rows += trials(random.Random(0).sample(tasks, AT_ONCE))
    document = report.RESULTS if arguments.write else None
    wrong = [row.what for row in rows if row.missed]
    report.publish("bench.tau_cost", "tau-cost", HEADINGS, [row.cells for row in rows], document, BELOW, wrong)


def imports() -> list[Row]:
    """In a process of its own, beyond what the trainer imports anyway."""
    known, seconds = json.loads(subprocess.check_output([sys.executable, "-c", IMPORTS], cwd=report.ROOT))
    return [Row("modules of tau2 without its tasks", known, "", 0), Row("import of tau2", seconds, "s", 1.5)]


def environments(place: Domain) -> Iterator[Row]:
    """Of all tasks of a domain."""
    tasks = [place.task(key) for key in place.data.tasks]
    fresh = [clocked(lambda task=task: place.world(task)) for task in tasks]
    yield Row(f"{place.data.name}: fresh environment, median", median(fresh), "ms", 1)
    talks = [conversation(place, task) for task in tasks]
    grades = [clocked(lambda talk=talk: grade(talk.parts())) for talk in talks]
    yield Row(f"{place.data.name}: grade, median", median(grades), "ms", 5)
    yield Row(f"{place.data.name}: grade, 99th percentile", quantiles(grades, n=100, method="inclusive")[-1], "ms", 5)
    del talks
    gc.collect()
    tracemalloc.start()
    live = [conversation(place, task) for task in itertools.islice(itertools.cycle(tasks), AT_ONCE)]
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] / len(live)
    tracemalloc.stop()
    yield Row(f"{place.data.name}: a live conversation after its last call", held / 1e6, "MB", 0.2)


def clocked(work: Any) -> float:
    """CPU milliseconds."""
    began = time.process_time()
    work()
    return 1000 * (time.process_time() - began)


def conversation(place: Domain, task: Any) -> Dialogue:
    """A whole one of the task's own calls."""
    exchange, criteria = Dialogue(place, task), task.evaluation_criteria
    for action in criteria.actions or []:
        exchange.agent("", [ToolCall(action.name, action.arguments)])
    exchange.agent("It is: " + " ".join(criteria.communicate_info or []))
    exchange.user("###STOP###")
    return exchange


def trials(tasks: Sequence[Task]) -> Iterator[Row]:
    slow, fast = (asyncio.run(batch(tasks, policy)) for policy in (SlowSolutions, Solutions))
    yield Row("trials with a reward below 1", sum(reward != 1 for reward in slow.rewards + fast.rewards), "", 0)
    least, most = ANSWER_SEC
    for answers, found, most_ms in ((f"after {least} to {most} s", slow, 50), ("at once", fast, None)):
        yield Row(f"answers {answers}: a turn", 1000 * found.cpu / found.turns, "ms", 10)
        yield Row(f"answers {answers}: a trial with its files", 1000 * found.cpu / len(tasks), "ms", 150)
        yield Row(f"answers {answers}: longest wait", 1000 * max(map(min, found.waits)), "ms", most_ms)
        yield Row(f"answers {answers}: longest wait, wall time", 1000 * max(wall for wall, _ in found.waits), "ms")


async def batch(tasks: Sequence[Task], policy: type[Solutions]) -> Batch:
    """One trial of each task, all at once, their domains loaded."""
    waits: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="bench-tau-cost-") as folder:
        async with gold_batch(tasks, Path(folder), policy) as run:
            watching = asyncio.create_task(watch(waits))
            began = time.process_time()
            groups = await run()
            cpu = time.process_time() - began
            watching.cancel()
    done = [trial for group in groups for trial in group.trajectories_G]
    return Batch(cpu, sum(len(trial.turns) for trial in done), [trial.reward for trial in done], waits)


async def watch(waits: list[tuple[float, float]]) -> None:
    while True:
        wall, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(SLEEP_SEC)
        waits.append((time.monotonic() - wall - SLEEP_SEC, time.process_time() - cpu))


if __name__ == "__main__":
    main()
