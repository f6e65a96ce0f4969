"""The agent's processes in one container: found, ended and stopped.

A root shell of the container signals them; the result is observed from outside, since an agent that is root can talk to
that shell through /proc, and to PID 1 by ptrace.
"""

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from docker.errors import DockerException

from harbortrainer.docker.command import Command
from harbortrainer.docker.daemon import call, engine
from harbortrainer.docker.shell import ShellGone, Shells

SIGNAL_SEC = 5.0  # a fork bomb slows the shell that is to end it
WATCH_TRIES, WATCH_PAUSE_SEC = 50, 0.01
ALONE_TRIES, ALONE_PAUSE_SEC = 10, 0.005
SEEN_SEC, PAUSE_SEC = 5.0, 0.1  # until killed processes are gone
_LIST = "for f in /proc/[0-9]*/stat; do read -r l <$f && printf '%s\\n' \"$l\"; done 2>/dev/null; true"
# Services that start programs of users: their own processes stay, their children do not.
_STARTERS = frozenset(["cron", "crond", "anacron", "atd", "sshd", "incrond", "xinetd", "inetd", "dropbear"])
# Stops everything at once, so that nothing forks meanwhile; then continues the kept processes and the children of those
# that are no starters.
_SELECTIVE = """kill -s STOP -- -1
k=' {kept} '; s=' {starters} '; n=
while [ "$n" != "$k" ]; do
n=$k
for f in /proc/[0-9]*/stat; do
read -r l 2>/dev/null <$f || continue
p=${{l%% *}}; set -- ${{l##*) }}
case $k in *" $p "*) ;; *) case $s in *" $2 "*) ;; *) case $k in *" $2 "*) k="$k$p ";; esac;; esac;; esac
done
done 2>/dev/null
for f in /proc/[0-9]*; do
p=${{f#/proc/}}
case $k in *" $p "*) kill -s CONT $p;; *) [ $p = 1 ] || [ $p = $$ ] || {rest};; esac
done 2>/dev/null"""
# children before the parents that wait for them
_RESUME = "kill -s CONT -- $(ls /proc | grep '^[0-9]' | sort -rn) 2>/dev/null; true"
_WATCHED = ("Threads:", "TracerPid:", "SigBlk:", "SigIgn:", "SigCgt:")  # lines of /proc/PID/status
_ROOT = Path("/sys/fs/cgroup")
_CGROUPS = (  # v1 and v2, made by dockerd itself and by systemd
    "pids/docker/{id}",
    "docker/{id}",
    "system.slice/docker-{id}.scope",
    "pids/system.slice/docker-{id}.scope",
)


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
        self.container_id = ""
        self._kept: list[int] = []  # as the container numbers them
        self._starters: list[int] = []
        self._kept_outside: set[int] = set()
        self._sleeping: Sleeping | None = None
        self.first_changed = False  # the agent has made PID 1 do something else
        self._first = 0  # PID 1 as its host numbers it; 0 = not noted

    async def note(self) -> None:
        """Note the services that the image's entrypoint has started, without the terminal."""
        listed = (await self._shells.run(Command(_LIST), user="root")).stdout.decode(errors="replace")
        inside = [_parse(line) for line in listed.splitlines()]
        self._kept = _services(inside, first=1)
        self._starters = [one.pid for one in inside if one.pid in self._kept and one.command in _STARTERS]
        self._first = (await call(engine().inspect_container, self._container))["State"]["Pid"]
        self._kept_outside = set(_services(await call(_outside, self._container), self._first))

    @property
    def starts_others(self) -> bool:
        """Whether a service of the image runs jobs of users."""
        return bool(self._starters)

    async def watch(self) -> None:
        """Note what PID 1 does, to see later whether the agent has made it do something else."""
        self._sleeping = await asyncio.to_thread(sleeping_soon, self.container_id)

    async def count(self) -> int:
        return len(await call(_outside, self._container))

    async def end(self) -> bool:
        """Kill them. False: some still run, or the container does not answer."""
        if not await self._signal("kill -s KILL -- -1", "kill -s KILL $p"):
            return False
        return (await self._alone() or await self._none_but("Z")) and await self._first_sleeps()

    async def freeze(self) -> bool:
        """Stop them. False: some still run, or the container does not answer."""
        stopped = await self._signal("kill -s STOP -- -1", ":") and await self._none_but("ZT")
        return stopped and await self._first_sleeps()

    async def thaw(self) -> None:
        await self._shells.run(Command(_RESUME), user="root")

    async def _signal(self, everything: str, rest: str) -> bool:
        kept, starters = (" ".join(map(str, pids)) for pids in (self._kept, self._starters))
        script = _SELECTIVE.format(kept=kept, starters=starters, rest=rest) if self._kept else everything
        try:
            await self._shells.last_words(script, SIGNAL_SEC)
        except (TimeoutError, ShellGone, DockerException, OSError):
            return False
        return True

    async def _alone(self) -> bool:
        """Whether only PID 1 is left, by reading one file: the common case."""
        for _ in range(ALONE_TRIES):
            left = n_tasks(self.container_id)
            if left is None or left <= 1:
                return left is not None
            await asyncio.sleep(ALONE_PAUSE_SEC)
        return False

    async def _first_sleeps(self) -> bool:
        """Whether PID 1 is as it was noted; True where that cannot be seen."""
        known = self._sleeping
        self.first_changed = known is not None and await asyncio.to_thread(sleeping, self.container_id) != known
        return not self.first_changed

    async def _none_but(self, states: str) -> bool:
        """Whether all are in one of these states of ps, or gone, within SEEN_SEC."""
        give_up = time.monotonic() + SEEN_SEC
        allowed = 0 if self._first else 1  # PID 1 lives as long as the container; where it was not noted, it is counted
        while True:
            try:
                running = await call(_outside, self._container)
            except DockerException:
                return False
            kept = _with_descendants(running, self._kept_outside) | {self._first}
            if sum(one.pid not in kept and one.state not in states for one in running) <= allowed:
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


Sleeping = tuple[str, ...]


def sleeping(container_id: str) -> Sleeping | None:
    """What PID 1 is about, as the machine's /proc shows it: it waits in one system call for ever.

    A root agent can attach to PID 1, and then its number, its system call (arguments, stack and program counter), its
    memory map, its signals or its open files differ. None = it does something else, or cannot be seen from here.
    """
    for place in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):
            pids = (_ROOT / place.format(id=container_id) / "cgroup.procs").read_text().split()
            first = next((pid for pid in pids if _is_first(Path("/proc", pid))), None)
            return _seen(Path("/proc", first)) if first else None
    return None


def sleeping_soon(container_id: str) -> Sleeping | None:
    """The same, once PID 1 has come so far."""
    for _ in range(WATCH_TRIES):
        if (found := sleeping(container_id)) or n_tasks(container_id) is None:
            return found
        time.sleep(WATCH_PAUSE_SEC)
    return None


def _is_first(process: Path) -> bool:
    with contextlib.suppress(OSError):
        return "\t1\n" in next(line for line in _lines(process / "status") if line.startswith("NSpid:"))
    return False


def _seen(process: Path) -> Sleeping | None:
    doing = (process / "syscall").read_text()
    if not doing[:1].isdigit() or not (process / "cmdline").read_bytes().startswith(b"sleep\0"):
        return None
    signals = [line for line in _lines(process / "status") if line.startswith(_WATCHED)]
    files = sorted(f"{one.name} {os.readlink(one)}" for one in (process / "fd").iterdir())
    return (process.name, doing, (process / "maps").read_text(), *signals, *files)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines(keepends=True)


def n_tasks(container_id: str, root: Path = _ROOT) -> int | None:
    """Number of threads of all its processes, PID 1 and zombies included; None = its cgroup is not visible here."""
    for place in _CGROUPS:
        try:
            return int((root / place.format(id=container_id) / "pids.current").read_text())
        except (OSError, ValueError):
            continue
    return None
