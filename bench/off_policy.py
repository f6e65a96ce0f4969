"""Steps an hour with trials that run on during updates, against taking turns: the whole loop, simulated trials.

    python -m bench.off_policy [--most-stale 0,1,2,4] [--steps 40] [--mean-sec 0.4] [--write]

The policy answers at once; a trial takes a random time whose longest is four times the mean; an update takes half the
mean. As many trials run at once as a batch has. Loop, journals and files are real, server and containers are not.
Bounds of a step: trials, mean time of a trial (every place is always taken); age, the mean over steps of the longest
trial of a batch divided by K + 1 (a trial may not outlive K + 1 steps).
"""

import argparse
import asyncio
import os
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("HARBOR_TELEMETRY", "0")

from harbor.models.trial.config import TrialConfig

from bench import report
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.trajectory import TrialName
from harbortrainer.train import parse
from harbortrainer.training.session import run_training
from tests.support.recorded_run import Answer, FakeServer, FakeTrial, Recorder, fake_outside
from tests.support.task_folder import write_task

BATCH, GROUP = 8, 4
LONGEST = 4.0  # times the mean
UPDATE = 0.5  # of the mean
HEADINGS = (
    "max_steps_off_policy", "steps/hour", "against 0", "step, s", "bound: trials, s", "bound: age, s", "oldest, steps",
)  # fmt: skip


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

    outside = replace(outside, new_trial=new_trial)
    words = (
        "backend=skyrl-tx", "skyrl_tx_url=http://here:1", "model_name=models/one", f"tasks_dir={tasks}",
        f"batch_size={BATCH}", f"group_size={GROUP}", f"n_parallel_envs={BATCH * GROUP}", "n_warm_envs=0",
        f"max_steps={steps}", "save_every=0", f"logs_dir={folder}", "run_name=run", "display=quiet",
        f"max_steps_off_policy={most_stale}", "loss_fn=ppo",
    )  # fmt: skip
    await run_training(parse(words), outside=outside)
    return read_lines(folder / "run" / "metrics.jsonl")


def main() -> None:
    arguments = _arguments()
    rows: list[list[str]] = []
    base = 0.0
    mean = arguments.mean_sec
    for most_stale in arguments.most_stale:
        with tempfile.TemporaryDirectory() as place:
            tasks = Path(place) / "tasks"
            for number in range(BATCH):
                write_task(tasks / f"task-{number}")
            began = time.monotonic()
            logged = asyncio.run(run(Path(place) / "runs", tasks, most_stale, arguments.steps, mean))
            print(f"max_steps_off_policy={most_stale}: {time.monotonic() - began:.0f} s")
        seconds = fmean(row["time/step"] for row in logged[2:])  # the first two fill the places
        base = base or seconds
        ages = [row.get("off_policy/staleness_max", 0.0) for row in logged]
        bounds = _mean_trial(arguments.steps, mean), _longest(arguments.steps, mean) / (most_stale + 1)
        numbers = [f"{3600 / seconds:,.0f}", f"{base / seconds:.2f} x", *(f"{s:.3f}" for s in (seconds, *bounds))]
        rows.append([str(most_stale), *numbers, f"{max(ages):.0f}"])
    document = report.DOCS / "off_policy.md" if arguments.write else None
    report.publish("bench.off_policy", "off-policy", HEADINGS, rows, document)


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
    parser.add_argument("--write", action="store_true", help="put the table into docs/off_policy.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
