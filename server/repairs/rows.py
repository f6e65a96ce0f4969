"""Statements that all clients wait for are committed together, by one thread.

Upstream: skyrl/tinker/api.py writes each request and each answer in a transaction of its own, in which sqlite is locked
for all others while the event loop passes some six times.
"""

# pyright: reportMissingImports=false
import asyncio
from concurrent.futures import ThreadPoolExecutor

from skyrl.tinker.db_models import enable_sqlite_wal
from skyrl.utils.log import logger
from sqlalchemy import Executable, create_engine
from sqlalchemy.exc import SQLAlchemyError

type Waiting = tuple[Executable, asyncio.Future[int | None]]


class Rows:
    """`url`: of the database, as SQLAlchemy takes it. A client that waits for write() must hold no connection."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)
        enable_sqlite_wal(self._engine)
        self._thread = ThreadPoolExecutor(1, "rows")
        self._waiting: list[Waiting] = []
        self._writing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Nothing may be written from here on."""
        await asyncio.to_thread(self._thread.shutdown)
        self._engine.dispose()

    async def write(self, statement: Executable) -> int | None:
        """Returns when it is committed: the key of a row that it adds, or None. Raises SQLAlchemyError."""
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((statement, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return await written

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            statements = [statement for statement, _ in batch]
            ends = await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, statements)
            for (_, written), end in zip(batch, ends, strict=True):
                if written.done():  # its client has gone
                    continue
                if isinstance(end, BaseException):
                    written.set_exception(end)
                else:
                    written.set_result(end)

    def _commit(self, statements: list[Executable]) -> list[int | SQLAlchemyError | None]:
        """What each has led to. One that fails is no failure of those beside it."""
        try:
            with self._engine.begin() as connection:
                done = [connection.execute(statement) for statement in statements]
                return [one.inserted_primary_key[0] if one.context.isinsert else None for one in done]
        except SQLAlchemyError as error:
            if len(statements) == 1:
                return [error]
            logger.warning(f"{len(statements)} statements are written one by one: {error}")
            return [end for statement in statements for end in self._commit([statement])]
