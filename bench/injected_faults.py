"""Containers that vanish under a batch of real trials, about one in twenty: what becomes of the groups.

    python -m bench.injected_faults [--groups 25] [--share 0.08] [--parallel 6] [--seed 0] [--write]

The policy answers after a third of a second; each task's verifier gives a reward of its own that is known and never 0.
While the trials run, containers are drawn at random and killed or removed by force a random time after their start.
"""

import argparse
import asyncio
import os
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("HARBOR_TELEMETRY", "0")

from docker.errors import APIError

from bench import report
from bench.variants import TOKENIZER, Script, ScriptedClient
from harbortrainer.config import Config
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images.image import images_of
from harbortrainer.docker.keeping import ownership
from harbortrainer.docker.keeping.cleaning import reap
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.trajectory import Trajectory, TrajectoryGroup
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.trajectories import write_trajectory
from harbortrainer.tasks.folders import digest, folder_of
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor.room import warm_up
from tests.support.task_folder import write_task

RUN_ID = "injected"
GROUP_SIZE = 8
SCRIPT = Script(n_commands=3, turns=5, latency_sec=0.3)
LONGEST_DELAY_SEC = 3.0  # between a container's start and its end; a trial lives that long


class Injector:
    """Ends containers of the run in a thread: each that appears is drawn with `share`. `ended`: how, how often."""

    def __init__(self, share: float, seed: int) -> None:
        self.ended: Counter[str] = Counter()
        self._share = share
        self._chance = random.Random(seed)
        self._seen: set[str] = set()
        self._due: list[tuple[float, str]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Injector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        client = engine()
        while not self._closed.wait(0.1):
            for container in client.containers(filters={"label": [f"{ownership.RUN_ID}={RUN_ID}", ownership.TRIAL]}):
                if (identity := container["Id"]) not in self._seen:
                    self._seen.add(identity)
                    if self._chance.random() < self._share:
                        self._due.append((time.monotonic() + self._chance.uniform(0, LONGEST_DELAY_SEC), identity))
            for due in [due for due in self._due if due[0] <= time.monotonic()]:
                self._due.remove(due)
                self._end(due[1])

    def _end(self, identity: str) -> None:
        client = engine()
        how = self._chance.choice(("killed", "removed"))
        try:
            if how == "killed":
                client.kill(identity)
            else:
                client.remove_container(identity, force=True)
        except APIError:  # its trial was over, and it gone
            return
        self.ended[how] += 1


def main() -> None:
    arguments = _arguments()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-injected-") as folder:
            asyncio.run(_run(arguments, Path(folder)))
    finally:
        reap(RUN_ID)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=25)
    parser.add_argument("--share", type=float, default=0.08, help="of the containers that are drawn")
    parser.add_argument("--parallel", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    return parser.parse_args()


def _tasks(folder: Path, n: int) -> dict[str, tuple[Task, float]]:
    """Task name -> task, its true reward."""
    tasks = {}
    for number in range(n):
        truth = (number + 1) / n
        path = write_task(folder / f"known-{number:02d}", test=f"echo {truth} > /logs/verifier/reward.txt\n")
        tasks[path.name] = (Task(path.name, path, digest(path)), truth)
    return tasks


async def _run(arguments: argparse.Namespace, folder: Path) -> None:
    tasks = _tasks(folder, arguments.groups)
    await asyncio.gather(*(images_of(folder_of(task)) for task, _ in tasks.values()))
    template = ChatTemplate.load(str(TOKENIZER), enable_thinking=False)
    sampler = PolicySampler()
    sampler.publish(ScriptedClient(template, SCRIPT), 0)
    config = Config(
        model_name="bench/scripted", tasks_dir=str(folder), n_parallel_envs=arguments.parallel,
        max_turns=SCRIPT.turns, context_limit=1_000_000,
    )  # fmt: skip
    run = RunDirectory(folder / "run")
    run.path.mkdir()
    ledger = Ledger(run.ledger)
    rollouts = Rollouts(config, sampler, template, RUN_ID, ledger)
    await warm_up(config)
    began = time.monotonic()

    def keep(trajectory: Trajectory) -> None:
        write_trajectory(run.trajectories("step", 0), trajectory)

    with Injector(arguments.share, arguments.seed) as injector:
        groups = await rollouts.run_groups(
            [task for task, _ in tasks.values()], GROUP_SIZE, run.batch("step", 0), step=0, temperature=1.0,
            on_trajectory=keep,
        )  # fmt: skip
    await rollouts.aclose()
    truths = {name: truth for name, (_, truth) in tasks.items()}
    _publish(arguments, ledger, run, groups, truths, injector.ended, time.monotonic() - began)


def _publish(
    arguments: argparse.Namespace,
    ledger: Ledger,
    run: RunDirectory,
    groups: list[TrajectoryGroup],
    truths: dict[str, float],
    ended: Counter[str],
    seconds: float,
) -> None:
    ends = [record for record in read_lines(run.ledger, checked=True) if record["event"] == "ended"]
    hit = [record for record in ends if record["reward"] is None]
    hit_groups = {record["task"] for record in hit}
    wrong = sum(reward != truths[group.task_name] for group in groups for reward in group.rewards_G)
    stages = Counter(f"{record['outcome']} in {record['stage']}" for record in hit)
    counted = ", ".join(f"{count} {name}" for name, count in stages.most_common())
    lost = sum(len(group.trajectories_G) < GROUP_SIZE for group in groups)
    rows = [
        ["trials started; seconds", f"{ledger.counts['started']}; {seconds:.0f}"],
        ["containers killed, removed", f"{ended['killed']}, {ended['removed']}"],
        ["trials that failed", f"{len(hit)} ({len(hit) / len(ends):.1%}): {counted}"],
        ["of them replaced; dropped", f"{ledger.counts['replaced']}; {ledger.counts['dropped']}"],
        [f"groups of {GROUP_SIZE}; with a member that failed", f"{len(groups)}; {len(hit_groups)}"],
        ["groups lost or below full size", str(lost)],
        ["rewards that are not the task's; tasks quarantined", f"{wrong}; {len(ledger.quarantined)}"],
    ]
    document = report.RESULTS if arguments.write else None
    faulty = ["groups lost"] * bool(lost) + ["rewards"] * bool(wrong) + ["tasks quarantined"] * bool(ledger.quarantined)
    report.publish("bench.injected_faults", "injected-faults", ("", ""), rows, document, wrong=faulty)


if __name__ == "__main__":
    main()
