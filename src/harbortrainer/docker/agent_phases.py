"""Opens and closes the agent's phases in a container: before grading its processes end and the system is put back.

A root shell of the container signals the agent's processes; the result is observed from outside, since an agent that is
root can talk to that shell through /proc. (It could also take over PID 1 by ptrace; a separate verifier prevents that.)
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from docker.errors import DockerException
from harbor.models.trial.paths import EnvironmentPaths

from harbortrainer.docker.daemon import call, engine
from harbortrainer.docker.images import Image
from harbortrainer.docker.place import (
    FACTS,
    NETWORK,
    network_files,
    network_script,
    parse_facts,
    place_of,
    removal_script,
)
from harbortrainer.docker.restore import Plan, Stamps, Survey, put_back, restore_folder, stamps, survey
from harbortrainer.docker.shell import IN_SHELL, Command, Output, ShellGone, Shells
from harbortrainer.docker.system import Footprint, Place
from harbortrainer.harbor import MODE

SIGNAL_SEC = 5.0  # a fork bomb slows the shell that is to end it
ALONE_TRIES, ALONE_PAUSE_SEC = 10, 0.005
SEEN_SEC, PAUSE_SEC = 5.0, 0.1  # until killed processes are gone
SHOWN_PATHS = 10
FULL = 0.8  # of the limit, which counts threads too
_TESTS, _REWARDS = str(EnvironmentPaths.tests_dir), str(EnvironmentPaths.verifier_dir)
_log = logging.getLogger("harbortrainer")
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
case $k in *" $p "*) kill -s CONT $p;; *) [ $p = 1 ] || [ $p = $$ ] || {rest};; esac
done 2>/dev/null"""
# children before the parents that wait for them
_RESUME = "kill -s CONT -- $(ls /proc | grep '^[0-9]' | sort -rn) 2>/dev/null; true"
# Ends the user's processes that have the mode in their environment, which only a verifier's have, and looks again until
# none shows it: a killed process can be read until it was given a processor to end on. Builtins only.
_END_VERIFIER = f"""i=0; [ "${MODE}" ] || while [ $i -lt 1000 ]; do
i=$((i + 1)) n=
for p in /proc/[0-9]*; do
while IFS= read -r l || [ "$l" ]; do case $l in *{MODE}=*) n=1; kill -s KILL ${{p#/proc/}};; esac; done <$p/environ
done 2>/dev/null
[ "$n" ] || break
done; true"""
_CGROUPS = (  # v1 and v2, made by dockerd itself and by systemd
    "pids/docker/{id}",
    "docker/{id}",
    "system.slice/docker-{id}.scope",
    "pids/system.slice/docker-{id}.scope",
)
# Before the agent acts: makes Harbor's folders and lists what the image has. Builtins only: processes cost time.
_LISTED = f"""for f in {_TESTS}/* {_TESTS}/.[!.]* {_TESTS}/..?*; do [ -e "$f" ] && echo {_TESTS} && break; done
{FACTS}"""
# After its processes are gone: makes the folders again, whatever it put in their place; empties a mount point.
_CLEAN = f"""[ -d /tmp ] || mkdir -m 1777 /tmp
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
    """Of one container. `keep_processes`: the agent's processes run on while its work is graded.

    `task`: its folder; None = unknown. `solution` gives the footprint of the task's solution, None without one.
    `put_back`: system paths that were restored, of all phases so far. `ended`: no process of the agent runs any more.
    """

    def __init__(
        self,
        container: str,
        shells: Shells,
        run_id: str,
        keep_processes: bool,
        *,
        task: Path | None = None,
        solution: Callable[[], Awaitable[Footprint | None]] | None = None,
    ) -> None:
        self.put_back: list[str] = []
        self.ended = False
        self._container = container
        self._shells = shells
        self._run_id = run_id
        self._keep_processes = keep_processes
        self._task = task
        self._solution = solution
        self._processes = Processes(container, shells)
        self._image: Image | None = None
        self._place = Place()
        self._network: Mapping[str, str] = {}  # the content of each file that Docker mounts
        self._before: Stamps = {}
        self._image_has_tests = False
        self._noted = self._frozen = False

    def created(self, container_id: str) -> None:
        self._processes.container_id = container_id

    async def prepare(self, image: Image, directory: str, make: str) -> None:
        """Make Harbor's folders by the command `make`, and note what the image has, in one round trip.

        Raises RuntimeError when the image lacks `directory` or the folders cannot be made.
        """
        self._image = image
        mark = f"made-{self._container}"
        output = await self._shells.run(
            Command(f"{IN_SHELL}\n{make} || exit 1\necho {mark}\n{_LISTED}", directory), user="root"
        )
        _, made, facts = output.stdout.decode(errors="replace").partition(f"{mark}\n")
        if not made and output.return_code == 126:
            raise RuntimeError(f"task.toml: workdir={directory} is not in the image")
        if not made:
            raise RuntimeError(f"container {self._container}: cannot make Harbor's folders: {_errors(output)}")
        self._image_has_tests = facts.startswith(f"{_TESTS}\n")
        found = parse_facts(facts)
        self._network = found.network
        self._place = await call(place_of, found, image, self._task)

    async def open(self) -> None:
        """Note which services run (first phase), or continue the agent's own processes (later ones)."""
        if self._noted:
            await self._end_verifier()
        if self._frozen:
            await self._processes.thaw()
            self._frozen = False
        elif self._image:
            if self._image.entrypoint:
                await self._processes.note()
            self._before = await call(stamps, self._container, self._place)
        self._noted = True

    async def close(self, *, final: bool) -> None:
        """Prepare the container for a verifier.

        Ends the agent's processes, or stops them until its next phase (`final` false); puts back the system paths that
        are no work of the task; empties the folders of tests and rewards. If its processes resist, the container is
        restarted, which keeps its files. Raises RuntimeError and docker.errors.APIError when even that fails.
        """
        if self._image is None:
            raise RuntimeError("the environment was not started")
        settled = self._keep_processes or await self._settle(final)
        if not settled:
            await call(engine().stop, self._container, timeout=0)
        plan, footprint = await self._put_back(self._image, stopped=not settled)
        self._shells.drop()
        if settled:
            try:
                return await self._clean(self._image, plan, footprint)
            except (RuntimeError, DockerException):  # no shell starts, since for example /dev was removed
                await call(engine().stop, self._container, timeout=0)
                await self._put_back(self._image, stopped=True)
        await self._start_again(self._image)
        await self._clean(self._image, plan, footprint)

    async def observe(self) -> Footprint:
        """End the processes of a task's solution that ran as the agent. Returns the system paths that it changed."""
        await self._settle(final=True)
        found = await call(survey, self._container, self._place, self._before)
        return await self._footprint_of(found)

    async def _footprint_of(self, found: Survey) -> Footprint:
        footprint = await call(found.footprint)
        script = f"{IN_SHELL}\n{network_script(self._network, write=False)}"
        output = await self._shells.run(Command(script), user="root")
        changed = dict.fromkeys(network_files(output.stdout), NETWORK)
        return Footprint({**footprint.paths, **changed}, footprint.made)

    async def _put_back(self, image: Image, *, stopped: bool) -> tuple[Plan, Footprint | None]:
        """What was put back, and the footprint if it had to be asked for.

        `stopped`: no shell can remove anything before the image's entrypoint runs.
        """
        found = await call(survey, self._container, self._place, self._before)
        footprint = await self._allowed() if found.needs_footprint else None
        allowed = footprint or Footprint()
        plan = await call(put_back, self._container, found, allowed, image, self._run_id, stopped=stopped)
        self._note(plan.paths)
        if plan.copies or plan.texts:  # from here on these are the image's
            self._before = self._before | await call(stamps, self._container, self._place, plan)
        return plan, footprint

    async def _allowed(self) -> Footprint:
        """What the task's solution may change; nothing without one."""
        return (await self._solution() if self._solution else None) or Footprint()

    def _note(self, paths: list[str]) -> None:
        if new := sorted(set(paths) - set(self.put_back)):
            self.put_back += new
            _log.warning("%s: put back before verification: %s", self._container, _shown(new))

    async def relieve(self, limit: int) -> None:
        """End the agent's processes if they have used up the container's `limit`, so that no command could start."""
        if await self._processes.count() >= FULL * limit:
            _log.warning("%s: all %d processes are in use; the agent's are ended", self._container, limit)
            await self._processes.end()

    async def _settle(self, final: bool) -> bool:
        if final:
            self.ended = await self._processes.end()
            return self.ended
        self._frozen = await self._processes.freeze()
        return self._frozen

    async def _end_verifier(self) -> None:
        """End what the last step's verifier left, and the shells that ran it: the next phase could read the mode."""
        for user in self._shells.users:
            await self._shells.run(Command(_END_VERIFIER), user=user)
        self._shells.drop()

    async def _start_again(self, image: Image) -> None:
        self._frozen = False
        await call(engine().start, self._container)
        _log.warning("%s: restarted: the agent's processes did not end, or no shell could start", self._container)
        if image.entrypoint:
            await self._processes.note()

    async def _clean(self, image: Image, plan: Plan, footprint: Footprint | None) -> None:
        known = footprint is not None or self._solution is None
        network = network_script(self._kept_network(footprint), write=known)
        script = "\n".join([IN_SHELL, *removal_script(plan.removed), network, _CLEAN])
        output = await self._shells.run(Command(script), user="root")
        if output.return_code != 0:
            what = f"{_TESTS} and {_REWARDS} cannot be made again"
            raise RuntimeError(f"container {self._container}: {what}: {_errors(output)}")
        changed = network_files(output.stdout)
        if changed and not known:  # compared only: the solution has to say whether they are work
            script = f"{IN_SHELL}\n{network_script(self._kept_network(await self._allowed()), write=True)}"
            changed = network_files((await self._shells.run(Command(script), user="root")).stdout)
        self._note(changed)
        if self._image_has_tests:
            await call(restore_folder, self._container, image, _TESTS, self._run_id)

    def _kept_network(self, footprint: Footprint | None) -> dict[str, str]:
        return {name: text for name, text in self._network.items() if not footprint or name not in footprint.paths}


def _errors(output: Output) -> str:
    return output.stderr.decode(errors="replace").strip()


def _shown(paths: list[str]) -> str:
    """A name is bytes that the policy chose: what no log can hold is escaped."""
    rest = len(paths) - SHOWN_PATHS
    names = ", ".join(paths[:SHOWN_PATHS]).encode("utf-8", "backslashreplace").decode()
    return names + (f" and {rest} more" if rest > 0 else "")


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
        self._kept_outside: set[int] = set()
        self._first = 0  # PID 1 as its host numbers it; 0 = not noted

    async def note(self) -> None:
        """Note the services that the image's entrypoint has started, without the terminal."""
        listed = (await self._shells.run(Command(_LIST), user="root")).stdout.decode(errors="replace")
        self._kept = _services([_parse(line) for line in listed.splitlines()], first=1)
        self._first = (await call(engine().inspect_container, self._container))["State"]["Pid"]
        self._kept_outside = set(_services(await call(_outside, self._container), self._first))

    async def count(self) -> int:
        return len(await call(_outside, self._container))

    async def end(self) -> bool:
        """Kill them. False: some still run, or the container does not answer."""
        if not await self._signal("kill -s KILL -- -1", "kill -s KILL $p"):
            return False
        return await self._alone() or await self._none_but("Z")

    async def freeze(self) -> bool:
        """Stop them. False: some still run, or the container does not answer."""
        return await self._signal("kill -s STOP -- -1", ":") and await self._none_but("ZT")

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
        """Whether only PID 1 is left, by reading one file: the common case."""
        for _ in range(ALONE_TRIES):
            left = n_tasks(self.container_id)
            if left is None or left <= 1:
                return left is not None
            await asyncio.sleep(ALONE_PAUSE_SEC)
        return False

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


def n_tasks(container_id: str, root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Number of threads of all its processes, PID 1 and zombies included; None = its cgroup is not visible here."""
    for place in _CGROUPS:
        try:
            return int((root / place.format(id=container_id) / "pids.current").read_text())
        except (OSError, ValueError):
            continue
    return None
