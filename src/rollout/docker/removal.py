"""Removal of containers off the critical path: a trial's reward is known before its container is gone."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import requests
from docker.errors import DockerException

from src.rollout.docker.engine import call_removal
from src.rollout.docker.reaper import remove_container

_log = logging.getLogger(__name__)
_pending: set[asyncio.Task[Any]] = set()


def in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run clean-up that nobody waits for before `drain`."""
    task = asyncio.get_running_loop().create_task(work)
    _pending.add(task)
    task.add_done_callback(_pending.discard)
    return task


async def remove_after(name: str, creation: asyncio.Future[Any] | None) -> None:
    """Remove container `name` once `creation`, which may still be under way, has ended either way."""
    if creation is not None:
        await asyncio.wait([creation])
        if not creation.cancelled():
            creation.exception()  # its own waiter reports it
    try:
        await call_removal(remove_container, name)
    except (DockerException, requests.RequestException) as error:
        _log.warning("container %s is left to the reaper: %s", name, error)


async def drain() -> None:
    """Wait for every removal that is under way. Await it once, at the end of the run."""
    loop = asyncio.get_running_loop()
    while mine := [task for task in _pending if task.get_loop() is loop]:
        await asyncio.wait(mine)
