"""The agent's time in a container: what it finds, and what is left of it when its work is graded there."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from docker.errors import DockerException
from harbor.models.trial.paths import EnvironmentPaths

from harbortrainer.docker.container import resume_container, stop_container
from harbortrainer.docker.daemon import call, engine
from harbortrainer.docker.images import Image
from harbortrainer.docker.restore import restore_folder, restore_tools
from harbortrainer.docker.shell import IN_SHELL, Command, ShellGone, Shells

# cgroup v1 and v2, by dockerd itself and by systemd
_PLACES = (
    "pids/docker/{id}",
    "docker/{id}",
    "system.slice/docker-{id}.scope",
    "pids/system.slice/docker-{id}.scope",
)


def n_tasks(container_id: str, root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Threads of all its processes, PID 1 and zombies among them; None where it cannot be told."""
    for place in _PLACES:
        try:
            return int((root / place.format(id=container_id) / "pids.current").read_text())
        except (OSError, ValueError):
            continue
    return None


# The agent's processes: ended before its work is graded, or stopped while it is between two steps.
#
# A root shell of the container signals them; what came of it is seen from outside, since an agent that is root can talk
# to that shell through /proc. (It could also take over PID 1 by ptrace; a separate verifier is the answer to that.)

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


SHOWN_PATHS = 10
FULL = 0.8  # of the limit, which counts threads too
_TESTS, _REWARDS = str(EnvironmentPaths.tests_dir), str(EnvironmentPaths.verifier_dir)
_log = logging.getLogger("harbortrainer")
# In a shell of root, before the agent has acted: Harbor's folders, and where PATH leads. By builtins: processes cost.
_PREPARE = f"""{IN_SHELL}
{{make}} || exit 1
echo {{mark}}
for f in {_TESTS}/* {_TESTS}/.[!.]* {_TESTS}/..?*; do [ -e "$f" ] && echo {_TESTS} && break; done
w=$PWD IFS=:; for d in $PATH; do cd "$w"; cd -P "$d/" 2>/dev/null && pwd || echo "$d"; done"""
# After its processes are gone: folders made anew, whatever it put in their place. A mount point stays and is emptied.
_CLEAN = f"""{IN_SHELL}
[ -d /tmp ] || mkdir -m 1777 /tmp
if [ -d /logs ] && [ ! -L /logs ] && rm -rf {_TESTS} {_REWARDS} 2>/dev/null; then
umask 022 && mkdir {_TESTS} && umask 0 && mkdir {_REWARDS}
exit
fi
for d in {_TESTS} {_REWARDS}; do
p=${{d%/*}}; [ -z "$p" ] || {{ [ -d "$p" ] && [ ! -L "$p" ]; }} || rm -rf "$p"
rm -rf "$d" 2>/dev/null || rm -rf "$d"/* "$d"/.[!.]* "$d"/..?*
mkdir -p "$d" && [ -z "$(ls -A "$d")" ] || exit 1
done
chmod 755 {_TESTS} && chmod 777 {_REWARDS}"""


class AgentPhases:
    def __init__(self, container: str, shells: Shells, run_id: str, keep_processes: bool) -> None:
        self._container = container
        self._shells = shells
        self._run_id = run_id
        self._keep_processes = keep_processes
        self._processes = Processes(container, shells)
        self._image: Image | None = None
        self._path: tuple[str, ...] = ()
        self._image_has_tests = False
        self._noted = self._frozen = False

    def created(self, container_id: str) -> None:
        self._processes.container_id = container_id

    async def prepare(self, image: Image, directory: str, make: str) -> None:
        """Run the command `make` for Harbor's folders, and look at what the image has, in one round trip.

        Raises RuntimeError: `directory` is not there, the folders cannot be made.
        """
        self._image = image
        mark = f"made-{self._container}"
        output = await self._shells.run(Command(_PREPARE.format(make=make, mark=mark), directory), user="root")
        _, made, facts = output.stdout.decode(errors="replace").partition(f"{mark}\n")
        if not made and output.return_code == 126:
            raise RuntimeError(f"task.toml: workdir={directory} is not in the image")
        if not made:
            said = output.stderr.decode(errors="replace").strip()
            raise RuntimeError(f"container {self._container}: cannot make Harbor's folders: {said}")
        lines = facts.splitlines()
        self._image_has_tests = lines[:1] == [_TESTS]
        self._path = tuple(dict.fromkeys(line for line in lines if line.startswith("/") and line != _TESTS))

    async def open(self) -> None:
        """Note what runs already (first phase), let the agent's own processes go on (later ones)."""
        if self._frozen:
            await self._processes.thaw()
            self._frozen = False
        elif not self._noted and self._image and self._image.entrypoint:
            await self._processes.note()
        self._noted = True

    async def close(self, *, final: bool) -> None:
        """Make the container fit for a verifier.

        The agent's processes are ended, or stopped until its next phase; programs that verification runs are the
        image's again; the folders of tests and rewards are empty and ours. Where its processes resist, the container
        is started anew: its files stay. Raises RuntimeError and docker.errors.APIError when even that does not help.
        """
        if self._image is None:
            raise RuntimeError("the environment was not started")
        settled = self._keep_processes or await self._settle(final)
        if not settled:
            await call(stop_container, self._container)
        restored = await call(restore_tools, self._container, self._image, self._path, self._run_id)
        if restored:
            _log.warning("%s: put back before verification: %s", self._container, _shown(restored))
        self._shells.drop()
        if settled:
            try:
                return await self._clean(self._image)
            except (RuntimeError, DockerException):  # not even a shell starts: of /dev, say, nothing is left
                await call(stop_container, self._container)
        await self._start_again(self._image)
        await self._clean(self._image)

    async def relieve(self, limit: int) -> None:
        """End the agent's processes if they have used up all that the container may have: no command could start."""
        if await self._processes.count() >= FULL * limit:
            _log.warning("%s: no process is left of %d; the agent's are ended", self._container, limit)
            await self._processes.end()

    async def _settle(self, final: bool) -> bool:
        if final:
            return await self._processes.end()
        self._frozen = await self._processes.freeze()
        return self._frozen

    async def _start_again(self, image: Image) -> None:
        self._frozen = False
        await call(resume_container, self._container)
        _log.warning("%s: started again: the agent's processes, or a lost /dev, left no other way", self._container)
        if image.entrypoint:
            await self._processes.note()

    async def _clean(self, image: Image) -> None:
        output = await self._shells.run(Command(_CLEAN), user="root")
        if output.return_code != 0:
            said = output.stderr.decode(errors="replace").strip()
            raise RuntimeError(f"container {self._container}: {_TESTS} and {_REWARDS} cannot be made anew: {said}")
        if self._image_has_tests:
            await call(restore_folder, self._container, image, _TESTS, self._run_id)


def _shown(paths: list[str]) -> str:
    rest = len(paths) - SHOWN_PATHS
    return ", ".join(paths[:SHOWN_PATHS]) + (f" and {rest} more" if rest > 0 else "")
