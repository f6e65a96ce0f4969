"""Keeps the footprints of tasks' solutions on disk."""

import asyncio
import hashlib
import json
import logging
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import asdict, fields
from pathlib import Path

import requests
from docker.errors import DockerException

from harbortrainer.docker.daemon import engine, ping_docker, shared
from harbortrainer.docker.images.image import Image, content_digest
from harbortrainer.docker.integrity.asked import Footprint
from harbortrainer.durable.files import cache_folder, make_folder, replace_text
from harbortrainer.errors import one_line

FOOTPRINT = "footprint.json"  # in the folder of a trial that records one
_METHOD = 7  # raise it when footprints are recorded in another way
N_AT_ONCE = 4  # solutions
_DAEMONS = (DockerException, requests.RequestException)  # errors that no solution causes
_log = logging.getLogger("harbortrainer")
_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()
_under_way: dict[str, asyncio.Task[Footprint | None]] = {}
_failed: set[str] = set()


def solutions(task: Path) -> list[Path]:
    """Return the folders of a task's solution, one a step. Blocking."""
    return [one for one in (task / "solution", *sorted(task.glob("steps/*/solution"))) if one.is_dir()]


def footprint_key(task: Path, image: Image) -> str | None:
    """Return the digest of image, task.toml, solution and files of steps; None = it has no solution. Blocking."""
    if not (folders := solutions(task)):
        return None
    parts = [str(_METHOD), engine().inspect_image(image.reference)["Id"], (task / "task.toml").read_text()]
    given = sorted(task.glob("steps/*/workdir"))
    parts += [f"{one.relative_to(task)} {content_digest(one)}" for one in (*folders, *given)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def stored(key: str) -> Footprint | None:
    try:
        found = json.loads(_file(key).read_text())
        return Footprint(*(frozenset(found[one.name]) for one in fields(Footprint)))
    except (OSError, ValueError, KeyError):
        return None


def dump(footprint: Footprint, key: str) -> str:
    """Return the footprint as JSON."""
    return json.dumps({"key": key, **{name: sorted(known) for name, known in asdict(footprint).items()}}, indent=0)


def adopt(file: Path) -> None:
    """Keep the footprint in FOOTPRINT of a trial whose solution earned its reward. Raises DiskFault."""
    if file.is_file():
        text = file.read_text()
        _write(json.loads(text)["key"], text)


def _write(key: str, text: str) -> None:
    make_folder(_file(key).parent)
    replace_text(_file(key), text)


async def learned(key: str, task: str, learn: Callable[[], Awaitable[Footprint]]) -> Footprint | None:
    """Return the footprint from disk, or of `learn`, which runs once for all callers; None = it failed.

    A failure gives one warning and is not tried again by this process; one of the daemon is tried again at once. Raises
    it where the daemon does not answer: that says nothing about the task. Cancelling one caller leaves `learn` running.
    """
    return await shared(_under_way, key, lambda: _learn(key, task, learn))


async def _learn(key: str, task: str, learn: Callable[[], Awaitable[Footprint]]) -> Footprint | None:
    if (known := await asyncio.to_thread(stored, key)) is not None or key in _failed:
        return known
    try:
        async with _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(N_AT_ONCE)):
            try:
                footprint = await learn()
            except _DAEMONS:
                footprint = await learn()
    except (RuntimeError, OSError, ValueError, TimeoutError, DockerException) as error:
        if isinstance(error, _DAEMONS) and await asyncio.to_thread(ping_docker) is not None:
            raise
        _failed.add(key)
        reason = one_line(f"{type(error).__name__}: {error}")
        _log.warning(
            "task %s: its solution could not run to show what the task needs (%s); only what its instruction names "
            "counts as asked for",
            task, reason,
        )  # fmt: skip
        return None
    await asyncio.to_thread(_write, key, dump(footprint, key))
    return footprint


def _file(key: str) -> Path:
    return cache_folder("footprints") / f"{key}.json"
