"""The evaluation of a run that trains: its row, and how it goes on beside the next batch."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from src.display.display import Display
from src.learning.trajectory import TrajectoryGroup
from src.race import first_error
from src.run.batch_metrics import eval_metrics
from src.run.breakdown import Breakdown
from src.stop import Stopped

Trials = Coroutine[Any, Any, Sequence[TrajectoryGroup]]


async def evaluation_row(
    trials: Trials, step: int, limit_sec: float, breakdown: Breakdown, display: Display
) -> dict[str, float]:
    """The metrics of the held-out tasks' trials, after `step`; cancelled and left out after `limit_sec` (0 = never)."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(limit_sec or None):
            groups_P = await trials
    except TimeoutError:
        limit = f"{limit_sec:g} s (eval_timeout_sec)"
        display.say(f"the evaluation after step {step} was not over within {limit}: left out")
        return {"eval/timed_out": 1.0, "time/evaluate": time.monotonic() - started}
    row = eval_metrics(groups_P) | breakdown.evaluation(groups_P)
    row["time/evaluate"] = time.monotonic() - started
    display.evaluation(step, row)
    return row


async def beside[A, B](one: Coroutine[Any, Any, A], other: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Results of both. When one fails the other is cancelled, its clean-up awaited, and that failure is raised.

    One that is stopped is no failure: the other was told as well, and may be letting its trials end.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = group.create_task(_heeding(one)), group.create_task(_heeding(other))
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    first, second = tasks[0].result(), tasks[1].result()
    if isinstance(first, Stopped):
        raise first
    if isinstance(second, Stopped):
        raise second
    return first, second


async def _heeding[T](work: Coroutine[Any, Any, T]) -> T | Stopped:
    try:
        return await work
    except Stopped as stopped:
        return stopped
