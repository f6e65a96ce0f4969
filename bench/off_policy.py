"""Steps an hour with trials that run on during updates, against taking turns: the whole loop.

    python -m bench.off_policy [--most-stale 0,1,2,4] [--steps 40] [--mean-sec 0.4] [--real] [--write]

Simulated: the policy answers at once; a trial takes a random time whose longest is four times the mean; an update takes
half the mean. As many trials run at once as a batch has. Loop, journals and files are real.
Bounds of a step: trials, mean time of a trial (every place is always taken); age, the mean over steps of the longest
trial of a batch and an update, divided by K + 1 (a trial ends before the update of the last of K + 1 steps). No cost:
the same trials and updates under the rules of `Pace`, simulated, where nothing else takes time; above: the loop over
that.
--real: a server, containers and the quickstart's tasks, whose tests take as long as the simulated trials.
"""

import argparse
import asyncio
import contextlib
import heapq
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("HARBOR_TELEMETRY", "0")

from harbor.models.trial.config import TrialConfig

from bench import report
from bench.kills import server
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.pace import GroupSlot, OpenGroup, Pace
from harbortrainer.learning.trajectory import TrialName
from harbortrainer.train import parse
from harbortrainer.training.session import run_training
from harbortrainer.venues.harbor.venue import HarborVenue
from tests.support.recorded_run import Answer, FakeHost, FakeServer, FakeTrial, Recorder, fake_outside
from tests.support.small_server import MODEL
from tests.support.task_folder import write_task

BATCH, GROUP = 8, 4
LONGEST = 4.0  # times the mean
UPDATE = 0.5  # of the mean
HEADINGS = (
    "max_steps_off_policy", "steps/hour", "against 0", "step, s", "no cost, s", "above", "bound: trials, s",
    "bound: age, s", "oldest, steps",
)  # fmt: skip


# in the container: mean times exp(0.7 z) times 0.8 seconds, at most LONGEST times the mean
SLEEP = (
    'sleep "$(awk -v seed="$(od -An -N3 -tu4 /dev/urandom)" \'BEGIN {{ srand(seed); '
    "z = sqrt(-2 * log(1 - rand())) * cos(6.2832 * rand()); t = {mean} * 0.8 * exp(0.7 * z); "
    'm = 4 * {mean}; printf "%.2f", t < m ? t : m }}\')"'
)


def trial_seconds(name: str, mean: float) -> float:
    """Lognormal (sigma 0.7), cut at LONGEST times the mean; the same for a name in every run."""
    rng = random.Random(name)
    return min(LONGEST * mean, rng.lognormvariate(0, 0.7) * mean * 0.8)


class Updates(FakeServer):
    """An update takes time."""

    def __init__(self, recorder: Recorder, seconds: float) -> None:
        super().__init__(recorder)
        self._seconds = seconds

    def forward_backward(self, datums: Any, loss_fn: str, config: Any) -> Any:
        done = super().forward_backward(datums, loss_fn, config)
        return _later(done, self._seconds)


async def _later(done: Answer[Any], seconds: float) -> Any:
    await asyncio.sleep(seconds)
    return await done


class Trials(FakeTrial):
    def __init__(self, config: TrialConfig, recorder: Recorder, mean: float) -> None:
        super().__init__(config, recorder)
        self._seconds = trial_seconds(config.trial_name, mean)

    async def _act(self) -> Any:
        await asyncio.sleep(self._seconds)
        return await super()._act()


class Quiet(Recorder):
    """Keeps nothing."""

    def note(self, kind: str, **what: Any) -> None: ...


async def run(folder: Path, tasks: Path, most_stale: int, steps: int, mean: float) -> list[dict[str, Any]]:
    """The rows of one run."""
    recorder = Quiet()
    outside = fake_outside(recorder, Updates(recorder, UPDATE * mean))

    async def new_trial(config: TrialConfig) -> Any:
        return Trials(config, recorder, mean)

    outside = replace(outside, venues={"harbor": HarborVenue(FakeHost(recorder), new_trial)})
    words = ("skyrl_tx_url=http://here:1", "model_name=models/one", *settings(folder, tasks, most_stale, steps))
    await run_training(parse(words), outside=outside)
    return read_lines(folder / "run" / "metrics.jsonl")


def settings(folder: Path, tasks: Path, most_stale: int, steps: int) -> list[str]:
    return [
        "backend=skyrl-tx", f"tasks_dir={tasks}", f"batch_size={BATCH}", f"group_size={GROUP}",
        f"n_parallel_envs={BATCH * GROUP}", f"max_steps={steps}", "save_every=0",
        f"logs_dir={folder}", "run_name=run", f"max_steps_off_policy={most_stale}", "loss_fn=ppo",
    ]  # fmt: skip


def run_real(folder: Path, url: str, most_stale: int, steps: int, mean: float) -> list[dict[str, Any]]:
    """The same with a real server and real containers, by the command line."""
    tasks = folder.parent / "tasks"
    if not tasks.exists():
        for task in sorted((report.ROOT / "datasets" / "quickstart").glob("create-*"))[:BATCH]:
            shutil.copytree(task, tasks / task.name)
            test = tasks / task.name / "tests" / "test.sh"
            test.write_text(test.read_text().replace("\nreward=0\n", f"\n{SLEEP.format(mean=mean)}\nreward=0\n", 1))
    words = settings(folder, tasks, most_stale, steps)
    words += [f"skyrl_tx_url={url}", f"model_name={MODEL}", *["lora_rank=8", "max_turns=4", "max_tokens=40"]]
    words += ["context_limit=2048", "learning_rate=1e-3"]
    subprocess.run([sys.executable, "-m", "src.train", *words], cwd=report.ROOT, check=True)
    return read_lines(folder / "run" / "metrics.jsonl")


def without_cost(most_stale: int, steps: int, mean: float) -> float:
    """Mean seconds of a step, but for the first two, where only trials and updates take time."""
    pace = Pace(most_stale, lambda step: BATCH if step < steps else 0)
    places = (GroupSlot(batch, problem) for batch in range(steps) for problem in range(BATCH))
    running: list[tuple[float, str, OpenGroup]] = []  # end, name
    waiting: list[tuple[str, OpenGroup]] = []
    left: Counter[GroupSlot] = Counter()
    now, update_ends, ends = 0.0, math.inf, [0.0]
    while len(ends) <= steps:
        while len(running) + len(waiting) < BATCH * GROUP and pace.may_start() and (place := next(places, None)):
            group = pace.start(place)
            left[place] = GROUP
            waiting += [(str(TrialName("step", *place, member)), group) for member in range(GROUP)]
        while waiting and len(running) < BATCH * GROUP:
            name, group = waiting.pop(0)
            heapq.heappush(running, (now + trial_seconds(name, mean), name, group))
        if update_ends == math.inf and pace.compose() is not None:
            update_ends = now + UPDATE * mean
        if running and running[0][0] <= update_ends:
            now, _, group = heapq.heappop(running)
            left[group.place] -= 1
            if not left[group.place]:
                pace.finish(group)
        else:
            now, update_ends = update_ends, math.inf
            pace.advance(len(ends))
            ends.append(now)
    return (ends[-1] - ends[2]) / (steps - 2)


def main() -> None:
    arguments = _arguments()
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(server()).url if arguments.real else ""
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows: list[list[str]] = []
        base = 0.0
        for most_stale in arguments.most_stale:
            logged = _logged(arguments, place / f"runs-{most_stale}", url, most_stale)
            seconds = fmean(row["time/step"] for row in logged[2:])  # the first two fill the places, and compile
            base = base or seconds
            rows.append(_row(arguments, most_stale, logged, seconds, base / seconds))
    name = "off-policy-real" if arguments.real else "off-policy"
    document = report.RESULTS if arguments.write else None
    report.publish("bench.off_policy", name, HEADINGS, rows, document)


def _logged(arguments: argparse.Namespace, folder: Path, url: str, most_stale: int) -> list[dict[str, Any]]:
    if arguments.real:
        return run_real(folder, url, most_stale, arguments.steps, arguments.mean_sec)
    tasks = folder.parent / "tasks"
    for number in range(BATCH):
        write_task(tasks / f"task-{number}")
    return asyncio.run(run(folder, tasks, most_stale, arguments.steps, arguments.mean_sec))


def _row(
    arguments: argparse.Namespace, most_stale: int, logged: list[dict[str, Any]], seconds: float, times: float
) -> list[str]:
    steps, mean = arguments.steps, arguments.mean_sec
    bounds = _mean_trial(steps, mean), (_longest(steps, mean) + UPDATE * mean) / (most_stale + 1)
    free = without_cost(most_stale, steps, mean)
    oldest = max(row.get("off_policy/staleness_max", 0.0) for row in logged)
    above = "" if arguments.real else f"{seconds / free - 1:.1%}"
    numbers = [f"{3600 / seconds:,.0f}", f"{times:.2f} x", f"{seconds:.3f}", f"{free:.3f}", above]
    numbers += [f"{bound:.3f}" for bound in bounds]
    return [str(most_stale), *numbers, f"{oldest:.0f}"]


def _names(step: int) -> list[str]:
    return [str(TrialName("step", step, problem, member)) for problem in range(BATCH) for member in range(GROUP)]


def _mean_trial(steps: int, mean: float) -> float:
    return fmean(trial_seconds(name, mean) for step in range(steps) for name in _names(step))


def _longest(steps: int, mean: float) -> float:
    return fmean(max(trial_seconds(name, mean) for name in _names(step)) for step in range(steps))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most-stale", type=lambda text: [int(word) for word in text.split(",")], default=[0, 1, 2, 4])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--mean-sec", type=float, default=0.4)
    parser.add_argument("--real", action="store_true", help="a real server and real containers")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
