"""The processes of one container: which are the image's services, how many there are, and the end of the agent's.

A root shell of the container signals them.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass

from docker.errors import DockerException

from harbortrainer.docker.command import Command
from harbortrainer.docker.daemon import call, engine
from harbortrainer.docker.shell import ShellGone, Shells

SIGNAL_SEC = 5.0  # a fork bomb slows the shell that is to end it
SEEN_SEC, PAUSE_SEC = 5.0, 0.1  # until killed processes are gone
_LIST = "for f in /proc/[0-9]*/stat; do read -r l <$f && printf '%s\\n' \"$l\"; done 2>/dev/null; true"
# Stops everything at once, so that nothing forks meanwhile; then continues the kept processes and their children.
_SELECTIVE = """kill -s STOP -- -1
k=' {kept} '; n=
while [ "$n" != "$k" ]; do
n=$k
for f in /proc/[0-9]*/stat; do
read -r l 2>/dev/null <$f || continue
p=${{l%% *}}; set -- ${{l##*) }}
case $k in *" $p "*) ;; *) case $k in *" $2 "*) k="$k$p ";; esac;; esac
done
done 2>/dev/null
for f in /proc/[0-9]*; do
p=${{f#/proc/}}
case $k in *" $p "*) kill -s CONT $p;; *) [ $p = 1 ] || [ $p = $$ ] || kill -s KILL $p;; esac
done 2>/dev/null"""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    state: str
    command: str


class Processes:
    """The agent's processes in one container: all but those that `note` found before it acted, and their children."""

    def __init__(self, container: str, shells: Shells) -> None:
        self._container = container
        self._shells = shells
        self._kept: list[int] = []  # as the container numbers them
        self._kept_outside: set[int] = set()
        self._first = 0  # PID 1 as its host numbers it; 0 = not noted

    async def note(self) -> None:
        """Note the services that the image's entrypoint has started, without the terminal."""
        listed = (await self._shells.run(Command(_LIST), user="root")).stdout.decode(errors="replace")
        self._kept = _services([_parse(line) for line in listed.splitlines()], first=1)
        self._first = (await call(engine().inspect_container, self._container))["State"]["Pid"]
        self._kept_outside = set(_services(await call(_outside, self._container), self._first))

    @property
    def kept(self) -> frozenset[int]:
        """The services that `note` found, as the daemon's machine numbers them."""
        return frozenset(self._kept_outside)

    async def count(self) -> int:
        return len(await call(_outside, self._container))

    async def end(self) -> bool:
        """Kill the others. False: some still run, or the container does not answer."""
        script = _SELECTIVE.format(kept=" ".join(map(str, self._kept))) if self._kept else "kill -s KILL -- -1"
        with contextlib.suppress(TimeoutError, ShellGone, DockerException, OSError):
            await self._shells.last_words(script, SIGNAL_SEC)
            return await self._ended()
        return False

    async def _ended(self) -> bool:
        """Whether all others are gone, but for zombies, within SEEN_SEC."""
        give_up = time.monotonic() + SEEN_SEC
        allowed = 0 if self._first else 1  # PID 1 lives as long as the container; where it was not noted, it is counted
        while True:
            running = await call(_outside, self._container)
            kept = _with_descendants(running, self._kept_outside) | {self._first}
            if sum(one.pid not in kept and one.state != "Z" for one in running) <= allowed:
                return True
            if time.monotonic() >= give_up:
                return False
            await asyncio.sleep(PAUSE_SEC)


def _outside(container: str) -> list[_Process]:
    """All processes of the container, with the PIDs of the daemon's host. Blocking."""
    rows = engine().top(container, "-eo pid,ppid,stat,comm")["Processes"] or []
    return [_Process(int(row[0]), int(row[1]), row[2][:1].upper(), row[3]) for row in rows]


def _parse(stat: str) -> _Process:
    """A line of /proc/PID/stat; the kernel escapes line breaks in a command's name, not brackets."""
    pid, _, tail = stat.partition(" (")
    command, _, fields = tail.rpartition(") ")
    state, parent = fields.split()[:2]
    return _Process(int(pid), int(parent), state, command)


def _services(running: list[_Process], first: int) -> list[int]:
    """PIDs of the children of PID 1, without the terminal's server, and of their descendants."""
    roots = {process.pid for process in running if process.parent == first and not process.command.startswith("tmux")}
    return sorted(_with_descendants(running, roots))


def _with_descendants(running: list[_Process], roots: set[int]) -> set[int]:
    found, before = set(roots), -1
    while len(found) != before:
        before = len(found)
        found |= {process.pid for process in running if process.parent in found}
    return found
