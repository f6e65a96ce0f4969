"""Opens and closes the agent's phases in a container: before grading its processes end and the system is put back."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from docker.errors import DockerException
from harbor.models.trial.paths import EnvironmentPaths

from harbortrainer.docker.command import IN_SHELL, Command
from harbortrainer.docker.daemon import call, engine
from harbortrainer.docker.images import Image
from harbortrainer.docker.inside import Unusual, renew
from harbortrainer.docker.place import (
    FACTS,
    NETWORK,
    network_files,
    network_script,
    parse_facts,
    place_of,
    removal_script,
    writing_script,
)
from harbortrainer.docker.processes import Processes
from harbortrainer.docker.restore import Plan, Stamps, Survey, put_back, restore_folder, stamps, survey
from harbortrainer.docker.shell import Output, Shells
from harbortrainer.docker.system import Footprint, Place
from harbortrainer.harbor import MODE

SHOWN_PATHS = 10
FULL = 0.8  # of the limit, which counts threads too
_TESTS, _REWARDS = str(EnvironmentPaths.tests_dir), str(EnvironmentPaths.verifier_dir)
_log = logging.getLogger("harbortrainer")
# Ends the user's processes that have the mode in their environment, which only a verifier's have, and looks again until
# none shows it: a killed process can be read until it was given a processor to end on. Builtins only.
_END_VERIFIER = f"""i=0; [ "${MODE}" ] || while [ $i -lt 1000 ]; do
i=$((i + 1)) n=
for p in /proc/[0-9]*; do
while IFS= read -r l || [ "$l" ]; do case $l in *{MODE}=*) n=1; kill -s KILL ${{p#/proc/}};; esac; done <$p/environ
done 2>/dev/null
[ "$n" ] || break
done; true"""
# Before the agent acts: makes Harbor's folders and lists what the image has. Builtins only: processes cost time.
_LISTED = f"""for f in {_TESTS}/* {_TESTS}/.[!.]* {_TESTS}/..?*; do [ -e "$f" ] && echo {_TESTS} && break; done
{FACTS}"""
# A root agent may move devices or put files in their place; none can be made again from inside.
_DEVICES = """d=
for l in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
[ -L /dev/${l%:*} ] && [ /dev/${l%:*} -ef /proc/self/${l#*:} ] || d=1
done
[ -z "$(command -v stat)" ] ||
[ "$(cd /dev && stat -c %t:%T null zero full random urandom tty)" = "1:3
1:5
1:7
1:8
1:9
5:0" ] || d=1
[ -z "$d" ] || { echo 'D /dev'; exit 1; }"""
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
    `acting`: some may.
    """

    def __init__(
        self,
        container: str,
        shells: Shells,
        run_id: str,
        keep_processes: bool,
        *,
        task: Path | None,
        solution: Callable[[], Awaitable[Footprint | None]],
    ) -> None:
        self.put_back: list[str] = []
        self.ended = self.acting = False
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
            Command(f"{IN_SHELL}\n{{ {make}; }} || exit 1\necho {mark}\n{_LISTED}", directory), user="root"
        )
        _, made, facts = output.stdout.decode(errors="replace").partition(f"{mark}\n")
        if not made and output.return_code == 126:
            raise RuntimeError(f"task.toml: workdir={directory} is not in the image")
        if not made:
            raise RuntimeError(f"container {self._container}: cannot make Harbor's folders: {_errors(output)}")
        self._image_has_tests = facts.startswith(f"{_TESTS}\n")
        folders, self._network = parse_facts(facts)
        self._place = await call(place_of, folders, image, self._task)

    async def open(self) -> None:
        """Note which services run (first phase), or continue the agent's own processes (later ones)."""
        if self._noted:
            await self._end_verifier()
        if self._frozen:
            await self._processes.thaw()
            self._frozen = False
        elif self._image:
            await self._processes.watch()
            if self._image.entrypoint:
                await self._processes.note()
            self._before = await call(stamps, self._container, self._place)
        self._noted = self.acting = True

    async def close(self, *, final: bool) -> None:
        """Prepare the container for a verifier.

        Ends the agent's processes, or stops them until its next phase (`final` false); puts back the system paths that
        are no work of the task; empties the folders of tests and rewards. If its processes resist, the container is
        restarted, which keeps its files. Raises RuntimeError and docker.errors.APIError when even that fails.
        """
        if self._image is None:
            raise RuntimeError("the environment was not started")
        self.acting = self._keep_processes
        settled = self._keep_processes or await self._settle(final)
        if self._processes.first_changed:
            self._note(["/proc/1"])
        if not settled:
            await call(engine().stop, self._container, timeout=0)
        plan = await self._put_back(self._image, stopped=not settled)
        self._shells.drop()
        if settled:
            try:
                await self._clean(self._image, plan)
                return await self._end_jobs(final)
            except (RuntimeError, DockerException):  # /dev was changed, or no shell starts
                await call(engine().stop, self._container, timeout=0)
                await self._put_back(self._image, stopped=True)
        await self._start_again(self._image)
        await self._clean(self._image, plan)

    async def observe(self) -> Footprint:
        """End the processes of a task's solution that ran as the agent. Returns the system paths that it changed."""
        await self._settle(final=True)
        found = await call(survey, self._container, self._place, self._before)
        return await self._footprint_of(found)

    async def _footprint_of(self, found: Survey) -> Footprint:
        footprint = await call(found.footprint)
        script = f"{IN_SHELL}\n{network_script(self._network)}"
        output = await self._shells.run(Command(script), user="root")
        changed = dict.fromkeys(network_files(output.stdout), NETWORK)
        return Footprint({**footprint.paths, **changed}, footprint.made)

    async def _put_back(self, image: Image, *, stopped: bool) -> Plan:
        """What was put back. `stopped`: no shell can remove anything before the image's entrypoint runs."""
        found = await call(survey, self._container, self._place, self._before)
        allowed = await self._allowed() if found.needs_footprint else Footprint()
        plan = await call(put_back, self._container, found, allowed, image, self._run_id, stopped=stopped)
        self._note(plan.paths)
        if plan.copies or plan.texts:  # from here on these are the image's
            self._before = self._before | await call(stamps, self._container, self._place, plan)
        return plan

    async def _allowed(self) -> Footprint:
        """What the task's solution may change; nothing without one."""
        return await self._solution() or Footprint()

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

    async def _end_jobs(self, final: bool) -> None:
        """A service of the image, such as cron, may have begun a job of the agent before its table was put back."""
        if self._processes.starts_others and not self._keep_processes:
            if not await self._settle(final):
                raise RuntimeError(f"container {self._container}: a job of the agent does not end")
            self._shells.drop()

    async def _start_again(self, image: Image) -> None:
        self._frozen = False
        await call(engine().start, self._container)
        await self._processes.watch()
        _log.warning(
            "%s: restarted: the agent's processes did not end, PID 1 or /dev was changed, or no shell could start",
            self._container,
        )
        if image.entrypoint:
            await self._processes.note()

    async def _clean(self, image: Image, plan: Plan) -> None:
        network = network_script(self._network)
        if not plan.removed and await call(_renewed, self._container):
            script = "\n".join([IN_SHELL, network, "true"])
        else:
            script = "\n".join([IN_SHELL, *removal_script(plan.removed), _DEVICES, network, _CLEAN])
        output = await self._shells.run(Command(script), user="root")
        if output.stdout.endswith(b"D /dev\n"):
            self._note(["/dev"])
        if output.return_code != 0:
            what = f"{_TESTS} and {_REWARDS} cannot be made again"
            raise RuntimeError(f"container {self._container}: {what}: {_errors(output)}")
        if changed := network_files(output.stdout):
            await self._restore_network(changed)
        if self._image_has_tests:
            await call(restore_folder, self._container, image, _TESTS, self._run_id)

    async def _restore_network(self, changed: list[str]) -> None:
        """Write these network files again, but for those that are work of the task."""
        work = (await self._allowed()).paths
        texts = {file: self._network[file] for file in changed if file not in work}
        await self._shells.run(Command(f"{IN_SHELL}\n{writing_script(texts)}"), user="root")
        self._note(list(texts))


def _renewed(container: str) -> bool:
    """Whether the folders of tests and rewards could be made again from outside. Blocking."""
    try:
        renew(container, {_TESTS: 0o755, _REWARDS: 0o777})
    except Unusual:
        return False
    return True


def _errors(output: Output) -> str:
    return output.stderr.decode(errors="replace").strip()


def _shown(paths: list[str]) -> str:
    """A name is bytes that the policy chose: what no log can hold is escaped."""
    rest = len(paths) - SHOWN_PATHS
    names = ", ".join(paths[:SHOWN_PATHS]).encode("utf-8", "backslashreplace").decode()
    return names + (f" and {rest} more" if rest > 0 else "")
