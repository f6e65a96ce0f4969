"""Work that something else may end before it is over."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def racing[T](
    work: Coroutine[Any, Any, T], against: Coroutine[Any, Any, object]
) -> AsyncIterator[asyncio.Task[T]]:
    """The task of `work`, once that or `against` is over.

    At the end of the block what is still under way is cancelled, its clean-up awaited; an error of `work` that nobody
    asked for is no news.
    """
    call, other = asyncio.create_task(work), asyncio.create_task(against)
    try:
        await asyncio.wait({call, other}, return_when=asyncio.FIRST_COMPLETED)
        yield call
    finally:
        call.cancel()
        other.cancel()
        await asyncio.wait({call, other})
        if not call.cancelled():
            call.exception()  # seen


def first_error(error: BaseException) -> BaseException:
    """Of a group the one that ended it: siblings were only cancelled for it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
