"""The held-out evaluation of a run that trains."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from harbortrainer.learning.trajectory import TrajectoryGroup
from harbortrainer.run.metrics import Breakdown, eval_metrics
from harbortrainer.stopping import Stopped, first_error
from harbortrainer.tasks.task import Task
from harbortrainer.training.schedule import SettingsByStep, evaluation_due
from harbortrainer.watch.display import Display

Trials = Coroutine[Any, Any, Sequence[TrajectoryGroup]]


class HeldOut:
    """Knows when the held-out tasks are due, and turns their trials into metrics."""

    def __init__(self, tasks: Sequence[Task], schedule: SettingsByStep, breakdown: Breakdown, display: Display) -> None:
        self.tasks = list(tasks)
        self._schedule = schedule
        self._breakdown = breakdown
        self._display = display

    def due(self, step: int, every: int) -> bool:
        """Whether an evaluation follows after `step` steps: at the start, every `every` steps or epoch, at the end."""
        if not self.tasks or step == 0:
            return bool(self.tasks)
        return step == self._schedule.total_steps or evaluation_due(every, self._schedule.at(step - 1).order, step - 1)

    async def evaluate(self, step: int, run: Callable[..., Trials]) -> dict[str, float]:
        """The metrics after `step`; its trials are cancelled, and left out, after `eval_timeout_sec` (0 = never).

        `run`: makes the trials of a batch, with the trainer's arguments.
        """
        config, started = self._schedule.at(step).config, time.monotonic()
        temperature = config.temperature if config.eval_temperature is None else config.eval_temperature
        limit_sec = config.eval_timeout_sec
        try:
            async with asyncio.timeout(limit_sec or None):
                groups_P = await run("eval", self.tasks, config.eval_group_size, temperature)
        except TimeoutError:
            limit = f"{limit_sec:g} s (eval_timeout_sec)"
            self._display.say(f"the evaluation after step {step} was not over within {limit}: left out")
            return {"eval/timed_out": 1.0, "time/evaluate": time.monotonic() - started}
        row = eval_metrics(groups_P) | self._breakdown.evaluation(groups_P)
        row["time/evaluate"] = time.monotonic() - started
        self._display.evaluation(step, row)
        return row


async def run_both[A, B](one: Coroutine[Any, Any, A], other: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Results of both. When one fails the other is cancelled, its clean-up awaited, and that failure is raised.

    Stopped is no failure of one: the other was asked to stop too, and may let its trials end.
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
