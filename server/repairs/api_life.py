"""What the API does before its engine starts, and now and then while it runs."""

# pyright: reportMissingImports=false
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from skyrl.tinker import api
from skyrl.utils.log import logger
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel.ext.asyncio.session import AsyncSession

Job = Callable[[AsyncSession], Awaitable[None]]
LONGEST_PAUSE_SEC = 30.0


def before_start(job: Callable[[], None]) -> None:
    """Has `job` run before the engine is there and requests are taken."""
    stock = api.app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        job()
        async with stock(app) as state:
            yield state

    api.app.router.lifespan_context = lifespan


def now_and_then(job: Job) -> None:
    """Has `job` run every half minute, and more often where results are kept for less than that."""
    stock = api.app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with stock(app) as state:
            task = asyncio.create_task(repeat(job))
            yield state
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    api.app.router.lifespan_context = lifespan


async def repeat(job: Job) -> None:
    while True:
        await asyncio.sleep(min(LONGEST_PAUSE_SEC, api.app.state.keep_results_sec))
        try:
            async with AsyncSession(api.app.state.db_engine) as session:
                await job(session)
        except (SQLAlchemyError, OSError):
            logger.exception("Cleaning up failed; it is tried again")
