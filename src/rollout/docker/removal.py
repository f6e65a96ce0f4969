"""Removal of containers off the critical path: a trial's reward is known before its container is gone."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

import requests
from docker.errors import APIError, DockerException

from src.rollout.docker.belongings import remove_container
from src.rollout.docker.engine import call_removal

MAX_REFUSALS = 5  # of a daemon that answers
FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.2, 5.0
DRAIN_SEC = 5.0  # the reaper comes after it
_log = logging.getLogger(__name__)
_pending: set[asyncio.Task[Any]] = set()
_refused: set[asyncio.Task[Any]] = set()  # of those: tried in vain, to be tried again


def in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run clean-up that nobody waits for before `drain`."""
    task = asyncio.get_running_loop().create_task(work)
    _pending.add(task)
    task.add_done_callback(_pending.discard)
    return task


async def remove_after(name: str, creation: asyncio.Future[Any] | None) -> None:
    """Remove container `name` once `creation`, which may still be under way, has ended either way.

    Tried again for as long as the daemon does not answer, until `drain` gives up.
    """
    if creation is not None:
        await asyncio.wait([creation])
        if not creation.cancelled():
            creation.exception()  # its own waiter reports it
    pause, refusals = FIRST_PAUSE_SEC, 0
    while (error := await _try(name)) is not None:
        refusals += isinstance(error, APIError)
        if refusals >= MAX_REFUSALS:
            _log.warning("container %s is left to the reaper: %s", name, error)
            return
        await _sleep_refused(name, pause)
        pause = min(2 * pause, LONGEST_PAUSE_SEC)


async def drain(patience_sec: float = DRAIN_SEC) -> None:
    """Wait for every removal that is under way; those that the daemon does not answer are given up after a while.

    Await it once, at the end of the run.
    """
    loop = asyncio.get_running_loop()
    give_up = time.monotonic() + patience_sec
    while mine := [task for task in _pending if task.get_loop() is loop]:
        late = time.monotonic() >= give_up
        for task in mine:
            if late and task in _refused:
                task.cancel()
        await asyncio.wait(mine, timeout=1.0 if late else give_up - time.monotonic())


async def _try(name: str) -> Exception | None:
    try:
        await call_removal(remove_container, name)
    except (DockerException, requests.RequestException) as error:
        return error
    return None


async def _sleep_refused(name: str, seconds: float) -> None:
    task = asyncio.current_task()
    assert task is not None
    _refused.add(task)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        _log.warning("container %s is left to the reaper: Docker does not answer", name)
        raise
    finally:
        _refused.discard(task)
