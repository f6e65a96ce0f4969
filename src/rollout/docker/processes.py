"""The agent's processes: ended before its work is graded, or stopped while it is between two steps.

A root shell of the container signals them; what came of it is seen from outside, since an agent that is root can talk
to that shell through /proc. (It could also take over PID 1 by ptrace; a separate verifier is the answer to that.)
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from docker.errors import DockerException

from src.rollout.docker.cgroup import n_tasks
from src.rollout.docker.engine import call, engine
from src.rollout.docker.shell import Command, ShellGone
from src.rollout.docker.shells import Shells

SIGNAL_SEC = 5.0  # a fork bomb slows the shell that is to end it
ALONE_TRIES, ALONE_PAUSE_SEC = 10, 0.005
SEEN_SEC, PAUSE_SEC = 5.0, 0.1  # for the killed to be gone
_LIST = "for f in /proc/[0-9]*/stat; do read -r l <$f && printf '%s\\n' \"$l\"; done 2>/dev/null; true"
# Stops everything at once, so that nothing forks meanwhile; then lets go on what is kept, and its children.
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
case $k in *" $p "*) kill -s CONT $p;; *) [ $p = 1 ] || [ $p = $$ ] || {rest};; esac
done 2>/dev/null"""
# children before those that wait for them
_RESUME = "kill -s CONT -- $(ls /proc | grep '^[0-9]' | sort -rn) 2>/dev/null; true"


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    state: str
    command: str


class Processes:
    """Of one container. What ran before the agent, and what that starts, is left alone; `note` says what it is."""

    def __init__(self, container: str, shells: Shells) -> None:
        self._container = container
        self._shells = shells
        self.container_id = ""
        self._kept: list[int] = []  # as the container numbers them
        self._kept_outside: set[int] = set()
        self._first = 0  # PID 1 as its host numbers it; 0 = not noted

    async def note(self) -> None:
        """Note the services that the image's entrypoint has started. The terminal is not among them."""
        listed = (await self._shells.run(Command(_LIST), user="root")).stdout.decode(errors="replace")
        self._kept = _services([_parse(line) for line in listed.splitlines()], first=1)
        self._first = (await call(engine().inspect_container, self._container))["State"]["Pid"]
        self._kept_outside = set(_services(await call(_outside, self._container), self._first))

    async def count(self) -> int:
        return len(await call(_outside, self._container))

    async def end(self) -> bool:
        """Kill. False: some live on, or the container does not answer."""
        if not await self._signal("kill -s KILL -- -1", "kill -s KILL $p"):
            return False
        return await self._alone() or await self._seen(self._ended)

    async def freeze(self) -> bool:
        """Stop. False: some run on, or the container does not answer."""
        return await self._signal("kill -s STOP -- -1", ":") and await self._seen(self._frozen)

    async def thaw(self) -> None:
        await self._shells.run(Command(_RESUME), user="root")

    async def _signal(self, everything: str, rest: str) -> bool:
        script = _SELECTIVE.format(kept=" ".join(map(str, self._kept)), rest=rest) if self._kept else everything
        try:
            await self._shells.last_words(script, SIGNAL_SEC)
        except (TimeoutError, ShellGone, DockerException, OSError):
            return False
        return True

    async def _alone(self) -> bool:
        """Whether PID 1 is all that is left: the common case, for the price of a file's read."""
        for _ in range(ALONE_TRIES):
            left = n_tasks(self.container_id)
            if left is None or left <= 1:
                return left is not None
            await asyncio.sleep(ALONE_PAUSE_SEC)
        return False

    async def _seen(self, settled: Callable[[list[_Process]], bool]) -> bool:
        give_up = time.monotonic() + SEEN_SEC
        while True:
            try:
                running = await call(_outside, self._container)
            except DockerException:
                return False
            if settled(running):
                return True
            if time.monotonic() >= give_up:
                return False
            await asyncio.sleep(PAUSE_SEC)

    def _ended(self, running: list[_Process]) -> bool:
        return len(self._others(running)) <= self._unknown

    def _frozen(self, running: list[_Process]) -> bool:
        return sum(process.state != "T" for process in self._others(running)) <= self._unknown

    @property
    def _unknown(self) -> int:
        """PID 1 cannot die while the container lives: where it was not noted, the one that is left is it."""
        return 0 if self._first else 1

    def _others(self, running: list[_Process]) -> list[_Process]:
        kept = _with_descendants(running, self._kept_outside) | {self._first}
        return [process for process in running if process.pid not in kept and process.state != "Z"]


def _outside(container: str) -> list[_Process]:
    """Blocking. As the daemon's host numbers them."""
    rows = engine().top(container, "-eo pid,ppid,stat,comm")["Processes"] or []
    return [_Process(int(row[0]), int(row[1]), row[2][:1].upper(), row[3]) for row in rows]


def _parse(stat: str) -> _Process:
    """A line of /proc/PID/stat; the kernel escapes line breaks in a command's name, not brackets."""
    pid, _, tail = stat.partition(" (")
    command, _, fields = tail.rpartition(") ")
    state, parent = fields.split()[:2]
    return _Process(int(pid), int(parent), state, command)


def _services(running: list[_Process], first: int) -> list[int]:
    """Children of PID 1 but for the terminal's server, with all below them."""
    roots = {process.pid for process in running if process.parent == first and not process.command.startswith("tmux")}
    return sorted(_with_descendants(running, roots))


def _with_descendants(running: list[_Process], roots: set[int]) -> set[int]:
    found, before = set(roots), -1
    while len(found) != before:
        before = len(found)
        found |= {process.pid for process in running if process.parent in found}
    return found
