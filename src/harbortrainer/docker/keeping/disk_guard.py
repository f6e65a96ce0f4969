"""Removes the container that has written most while Docker's disk, which all containers share, is nearly full."""

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from docker.errors import DockerException

from harbortrainer.commands import command
from harbortrainer.docker.daemon import engine, remove_container
from harbortrainer.docker.keeping.ownership import TRIAL, running

GIB = 1024**3
LEAST_RESERVE, MOST_RESERVE, RESERVE_SHARE = 2 * GIB, 8 * GIB, 0.05
NOTABLE_SHARE = 1 / 8  # of the reserve: a container with less is not to blame
EVERY_SEC = 0.5  # between two checks
COUNTING_PAUSES = 4  # times as long as the daemon has counted
QUIET_SEC = 60.0  # between two warnings that no container of the run is to blame
_PROJECT = "com.docker.compose.project"
_log = logging.getLogger("harbortrainer")
_ended: dict[str, str] = {}  # session of Harbor's trial -> reason


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes. `free`: available to non-root users, so the guard acts early."""

    free: int
    total: int


def eviction_reason(trial_name: str) -> str:
    """Return why the guard removed a container of this trial; "" = it did not."""
    sessions = (session for session in _ended if session.startswith(f"{trial_name.lower()}__"))
    return next((_ended[session] for session in sessions), "")


@contextlib.contextmanager
def guarding_disk(run_id: str) -> Iterator[None]:
    """Watch the daemon's disk in a thread. Raises docker.errors.DockerException when the daemon does not answer."""
    guard, closed = DiskGuard(run_id, free_space()), threading.Event()
    thread = threading.Thread(target=guard.watch, args=(closed,), name="disk-guard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()


def reserve_of(space: Space) -> int:
    """Get bytes to keep free: enough for what is written between two checks, and at most half of what is free now."""
    wanted = min(max(LEAST_RESERVE, int(RESERVE_SHARE * space.total)), MOST_RESERVE)
    return min(wanted, space.free // 2)


class DiskGuard:
    """Removes the biggest of a run's containers while less than the reserve is free."""

    def __init__(self, run_id: str, read: Callable[[], Space | None]) -> None:
        """`read` blocks; None = not known."""
        self._run_id, self._read = run_id, read
        self._reserve: int | None = None  # until the first check that succeeds
        self._warned = -QUIET_SEC

    def watch(self, closed: threading.Event) -> None:
        """Check until `closed` is set. Blocking."""
        pause = 0.0
        while not closed.wait(pause):
            try:
                pause = self.check_once()
            except (DockerException, OSError) as error:  # of this check; requests' errors are OSErrors
                _log.debug("disk guard: %s", error)
                pause = EVERY_SEC

    def check_once(self) -> float:
        """Read the free space; remove a container if it is short. Returns seconds until the next check. Blocking."""
        space = self._read()
        if space is None:
            return EVERY_SEC
        if self._reserve is None:
            self._reserve = reserve_of(space)
        began = time.monotonic()
        if space.free < self._reserve and self._end_biggest(space.free):
            return 0.0
        return max(EVERY_SEC, COUNTING_PAUSES * (time.monotonic() - began))

    def _end_biggest(self, free: int) -> bool:
        assert self._reserve is not None
        notable = max(1, int(self._reserve * NOTABLE_SHARE))
        mine = engine().containers(size=True, filters=running(self._run_id))
        container = max(mine, key=_bytes_written, default=None)
        if container is None or (size := _bytes_written(container)) < notable:
            self._warn(free)
            return False
        marks = container["Labels"]
        session = (marks.get(TRIAL) or marks.get(_PROJECT, "")).lower()
        reason = f"its container had written {size / GIB:.2f} GiB when Docker's disk had {free / GIB:.2f} GiB left"
        _ended[session] = reason  # before the trial notices
        _log.warning("%s is removed: %s", session or container["Id"][:12], reason)
        remove_container(container["Id"])
        return True

    def _warn(self, free: int) -> None:
        if time.monotonic() - self._warned >= QUIET_SEC:
            self._warned = time.monotonic()
            _log.warning(
                "Docker's disk has %.2f GiB left and no container of this run holds much of it: free some space "
                "(%s)", free / GIB, command("doctor clean"),
            )  # fmt: skip


def _bytes_written(container: dict[str, Any]) -> int:
    """Bytes in its own layer; volumes are not counted."""
    return container.get("SizeRw", 0)


def free_space() -> Callable[[], Space | None]:
    """Return what reads the space below the daemon's folder; None, where this process does not see the folder."""
    client = engine()
    root = client.info().get("DockerRootDir", "")
    if not client.base_url.startswith("http+docker") or not os.path.isdir(root):
        return lambda: None
    return lambda: _of_folder(root)


def _of_folder(root: str) -> Space:
    usage = shutil.disk_usage(root)
    return Space(usage.free, usage.total)
