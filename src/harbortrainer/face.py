"""The package from Python: what `import harbortrainer` shows, imported when it is used (docs/python.md)."""

import asyncio
import contextlib
import io
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import chz

from harbortrainer.backend.own_loss import LossSequence
from harbortrainer.bundled.agents.program import Program
from harbortrainer.cli.arguments import validate
from harbortrainer.cli.main import load_environment, until_stopped
from harbortrainer.config import Config, RunSettings
from harbortrainer.durable.disk import disk_errors
from harbortrainer.durable.files import read_json
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.evaluation.arguments import EvalArgs as EvalConfig
from harbortrainer.evaluation.arguments import check
from harbortrainer.evaluation.session import RESULT, evaluated
from harbortrainer.learning.batch import TrainingBatch, assemble
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup, Turn
from harbortrainer.plugins import name_of, offer
from harbortrainer.rollout.venue import Venue
from harbortrainer.run.config_changes import read_run_arguments
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.metrics import RowSink
from harbortrainer.sft.arguments import check as check_sft
from harbortrainer.sft.session import run_sft
from harbortrainer.sft_config import SftConfig
from harbortrainer.stopping import SIGNAL_STATUS, Stop
from harbortrainer.tasks.task import Task
from harbortrainer.training.outside import Outside, StartWandb
from harbortrainer.training.session import run_training

__all__ = [
    "Config", "EvalConfig", "LossSequence", "Outcome", "Program", "Run", "SftConfig", "Task",
    "TrainingBatch", "TrainingSequence", "Trajectory", "TrajectoryGroup", "Turn", "UserError", "Venue", "assemble",
    "continued", "evaluate", "sft", "train",
]  # fmt: skip

Metrics = Mapping[str, float]  # a row of docs/metrics.md
Told = Callable[[int, Metrics], None]  # called with the number of steps trained, and the row
Advantage = Callable[[Sequence[float], Sequence[Trajectory]], Sequence[float | Sequence[float]]]
Reward = Callable[[Trajectory], float]
Loss = Callable[[Sequence[LossSequence]], tuple[Any, dict[str, float]]]


@dataclass(frozen=True, slots=True)
class Run:
    """A directory of a run or an evaluation, as this process left it. `status`: as that of the command, 0 = done."""

    path: Path
    status: int

    @property
    def metrics(self) -> list[dict[str, float]]:
        """A row for each step, those of earlier processes too."""
        return read_lines(RunDirectory(self.path).metrics)

    @property
    def result(self) -> dict[str, Any]:
        """What an evaluation has found. Raises UserError for another directory."""
        return read_json(self.path / RESULT)


def train(
    config: Config,
    *,
    advantage: Advantage | None = None,
    reward: Reward | None = None,
    loss: Loss | None = None,
    agent: type | None = None,
    venues: Mapping[str, Venue] = MappingProxyType({}),
    after_step: Told | None = None,
    after_evaluation: Told | None = None,
    outside: Outside | None = None,
) -> Run:
    """Train, to the end or a limit; blocks. Functions and classes, from a module or a script, replace the settings.

    `venues`: by the names that `tasks_dir=NAME:...` uses. `after_step` gets each new step's row once it is written;
    `after_evaluation` each row with an evaluation. Raises UserError for what the user can mend,
    KeyboardInterrupt after Ctrl-C; the run directory can then be continued.
    """
    for name, venue in venues.items():
        offer("venues", name, venue)
    given = {"advantage": advantage, "reward": reward, "loss": loss, "agent": agent}
    config = chz.replace(config, **{field: name_of(field, value) for field, value in given.items() if value})
    validate(config)
    rows = _Rows(outside or Outside(), after_step, after_evaluation)
    return rows.run(config, lambda stop: run_training(config, stop, rows.outside))


def sft(
    config: SftConfig,
    *,
    after_step: Told | None = None,
    after_evaluation: Told | None = None,
    outside: Outside | None = None,
) -> Run:
    """Fine-tune on conversations or earlier trials; blocks. Arguments and errors as of `train`."""
    check_sft(config)
    rows = _Rows(outside or Outside(), after_step, after_evaluation)
    return rows.run(config, lambda stop: run_sft(config, stop, rows.outside))


def evaluate(config: EvalConfig, *, outside: Outside | None = None) -> Run:
    """Evaluate one or two policies; blocks. Raises UserError, KeyboardInterrupt."""
    check(config)
    status, path = _until_done(lambda _: evaluated(config, outside))
    return Run(path, status)


def continued(run: str | Path, **changes: Any) -> Config:
    """Get the settings of a training run with which `train` continues it, and those that change. Raises UserError."""
    return chz.replace(read_run_arguments(Config, Config, [f"resume={run}"]), **changes)


def _until_done[T](work: Callable[[Stop], Coroutine[Any, Any, T]]) -> T:
    """The result of `work`, which Ctrl-C stops. Raises KeyboardInterrupt then."""
    stop = Stop()
    load_environment()
    try:
        with disk_errors():
            done = asyncio.run(until_stopped(work(stop), stop))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if stop.status == SIGNAL_STATUS:
        raise KeyboardInterrupt
    return done


class _Rows:
    """Takes a run's rows for the callbacks, beside wandb, and notes the run's directory."""

    def __init__(self, outside: Outside, after_step: Told | None, after_evaluation: Told | None) -> None:
        self._start: StartWandb = outside.start_wandb
        self.outside = replace(outside, start_wandb=self._started)
        self._after_step, self._after_evaluation = after_step, after_evaluation
        self._run: RunDirectory | None = None
        self._wandb: RowSink | None = None
        self._say: Callable[[str], None] = print
        self._known = -1  # the last row of earlier processes, which are replayed

    def run(self, config: RunSettings, work: Callable[[Stop], Coroutine[Any, Any, int]]) -> Run:
        """Return the run that `work` makes or continues; one that was complete already has no rows to take."""
        status = _until_done(work)
        return Run(self._run.path if self._run is not None else Path(str(config.resume)), status)

    def _started(
        self,
        run: RunDirectory,
        project: str | None,
        name: str | None,
        record: dict[str, Any],
        say: Callable[[str], None],
    ) -> RowSink:
        self._run, self._wandb, self._say = run, self._start(run, project, name, record, say), say
        rows = read_lines(run.metrics)
        self._known = rows[-1]["global_step"] if rows else -1
        return self

    def log(self, row: dict[str, Any]) -> None:
        if self._wandb is not None:
            self._wandb.log(row)
        if (step := row["global_step"]) <= self._known:
            return
        evaluated = any(name.startswith("eval/") for name in row)
        printed = io.StringIO()  # the display has the terminal, and shows it
        with contextlib.redirect_stdout(printed):
            # step 0: the evaluation before the first step, whose row has no reward
            for told in (self._after_step if step else None, self._after_evaluation if evaluated else None):
                if told is not None:
                    told(step, dict(row))
        for line in printed.getvalue().splitlines():
            self._say(line)

    def finish(self, exit_code: int | None = None) -> None:
        if self._wandb is not None:
            self._wandb.finish(exit_code)
