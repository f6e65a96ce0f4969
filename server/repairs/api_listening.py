"""The API shows the engine that it listens: to a server that does not, no client can show that it is there.

Upstream: skyrl/tinker/engine.py, cleanup_stale_sessions unloads the models of all users when the API was busy with one
request, or the machine asleep, for longer than the sessions' time-out. engine_listening keeps them.
"""

# pyright: reportMissingImports=false
import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from skyrl.tinker import api

from repairs.api_routes import around_life
from repairs.shared import LISTENS_FILE, longest_gap

TICK_SEC = 1.0


async def show(file: Path, timeout_sec: float) -> None:
    """Keeps two times with the file, which a full disk cannot prevent: now, and since when it has listened."""
    file.touch()
    since = last = time.time()
    while True:
        now = time.time()
        since = now if now - last > longest_gap(timeout_sec) else since
        last = now
        os.utime(file, (since, now))
        await asyncio.sleep(TICK_SEC)


@contextlib.asynccontextmanager
async def showing() -> AsyncIterator[None]:
    file, timeout_sec = Path(os.environ[LISTENS_FILE]), api.app.state.engine_config.session_timeout_sec
    task = asyncio.create_task(show(file, timeout_sec))
    try:
        yield
    finally:
        task.cancel()


def apply() -> None:
    around_life(showing)
