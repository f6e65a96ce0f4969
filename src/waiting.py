"""Run work until it is over, or until something else ends it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn

End = Coroutine[Any, Any, NoReturn]  # waits for a reason to end the work, and raises it


async def unless[T](work: Coroutine[Any, Any, T], *ends: End) -> T:
    """Result of `work`. When one of `ends` raises first, `work` is cancelled, its clean-up awaited, and that is raised.

    Work is not started when an end is due already. Where both fail at once, the end counts: it names the cause.
    """
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(end) for end in ends]
    watchers, call = list(tasks), None
    try:
        await asyncio.sleep(0)
        if (due := _first_done(watchers)) is None:
            call = asyncio.create_task(work)
            tasks.append(call)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            due = _first_done(watchers)
            if call.done() and (due is None or call.cancelled() or call.exception() is None):
                return call.result()
        assert due is not None
        return due.result()
    finally:
        if call is None:
            work.close()  # it was never started
        await _cancel(tasks)


def first_error(error: BaseException) -> BaseException:
    """The error that ended a group; its siblings were only cancelled."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _first_done(tasks: list[asyncio.Task[Any]]) -> asyncio.Task[Any] | None:
    return next((task for task in tasks if task.done()), None)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel all and await their clean-up. Their errors are ignored."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks it as seen
