"""The processes of one container, with the PIDs of the daemon's host: the image's services, and the end of all."""

import asyncio
import contextlib
import time
from dataclasses import dataclass

from docker.errors import DockerException

from harbortrainer.docker.box.shell import ShellGone, Shells
from harbortrainer.docker.daemon import call, engine

SIGNAL_SEC = 5.0  # a fork bomb slows the shell that is to end it
SEEN_SEC, PAUSE_SEC = 5.0, 0.1  # until killed processes are gone


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    state: str
    command: str


async def services(container: str) -> frozenset[int]:
    """Return what the image's entrypoint has started, without the terminal. Call it before the agent acts."""
    first: int = (await call(engine().inspect_container, container))["State"]["Pid"]
    return frozenset(_services(await call(_running, container), first))


async def count(container: str) -> int:
    return len(await call(_running, container))


async def end(container: str, shells: Shells) -> None:
    """Kill all but the first, services too, and wait until they are gone, SEEN_SEC at most."""
    with contextlib.suppress(TimeoutError, ShellGone, DockerException, OSError):
        await shells.last_words("kill -s KILL -- -1", SIGNAL_SEC)
        give_up = time.monotonic() + SEEN_SEC
        while time.monotonic() < give_up:
            if sum(one.state != "Z" for one in await call(_running, container)) <= 1:
                return
            await asyncio.sleep(PAUSE_SEC)


def _running(container: str) -> list[_Process]:
    """Blocking."""
    rows = engine().top(container, "-eo pid,ppid,stat,comm")["Processes"] or []
    return [_Process(int(row[0]), int(row[1]), row[2][:1].upper(), row[3]) for row in rows]


def _services(running: list[_Process], first: int) -> set[int]:
    """PIDs of the children of PID 1, without the terminal's server, and of their descendants."""
    found = {one.pid for one in running if one.parent == first and not one.command.startswith("tmux")}
    before = -1
    while len(found) != before:
        before = len(found)
        found |= {one.pid for one in running if one.parent in found}
    return found
