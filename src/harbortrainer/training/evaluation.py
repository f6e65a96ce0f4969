"""The held-out evaluations of a training run."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from harbortrainer.learning.suspicion import described
from harbortrainer.learning.trajectory import TrajectoryGroup
from harbortrainer.run.metrics import Breakdown, eval_metrics
from harbortrainer.stopping import Stopped, first_error
from harbortrainer.tasks.task import Task
from harbortrainer.training.schedule import SettingsByStep, evaluation_due
from harbortrainer.watch.display import Display

Trials = Coroutine[Any, Any, Sequence[TrajectoryGroup]]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Decides when the held-out tasks are evaluated, and turns their trials into metrics."""

    tasks: Sequence[Task]
    schedule: SettingsByStep
    breakdown: Breakdown
    display: Display

    def due(self, step: int, every: int) -> bool:
        """Whether an evaluation follows after `step` steps: at the start, every `every` steps or epoch, at the end."""
        if not self.tasks or step == 0:
            return bool(self.tasks)
        return step == self.schedule.total_steps or evaluation_due(every, self.schedule.at(step - 1).order, step - 1)

    async def evaluate(self, step: int, run: Callable[..., Trials]) -> dict[str, float]:
        """The metrics after `step`. `run`: makes the trials, given tasks, group size and temperature."""
        config, started = self.schedule.at(step).config, time.monotonic()
        temperature = config.temperature if config.eval_temperature is None else config.eval_temperature
        groups_P = await run(self.tasks, config.eval_group_size, temperature)
        row = eval_metrics(groups_P) | self.breakdown.evaluation(groups_P)
        row["time/evaluate"] = time.monotonic() - started
        self.display.evaluation(step, row)
        if line := described(groups_P):
            self.display.say(f"held-out after step {step}: {line}")
        return row


async def run_both[A, B](one: Coroutine[Any, Any, A], other: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Results of both. When one fails, the other is cancelled, its clean-up awaited, and the failure is raised.

    Stopped does not cancel the other: it was asked to stop too, and its trials may finish.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = group.create_task(_until_stopped(one)), group.create_task(_until_stopped(other))
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    first, second = tasks[0].result(), tasks[1].result()
    if isinstance(first, Stopped):
        raise first
    if isinstance(second, Stopped):
        raise second
    return first, second


async def _until_stopped[T](work: Coroutine[Any, Any, T]) -> T | Stopped:
    try:
        return await work
    except Stopped as stopped:
        return stopped
