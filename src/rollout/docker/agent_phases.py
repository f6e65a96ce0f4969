"""The agent's time in a container: what it finds, and what is left of it when its work is graded there."""

import logging

from docker.errors import DockerException
from harbor.models.trial.paths import EnvironmentPaths

from src.rollout.docker.container import resume_container, stop_container
from src.rollout.docker.engine import call
from src.rollout.docker.images import Image
from src.rollout.docker.integrity import restore_folder, restore_tools
from src.rollout.docker.processes import Processes
from src.rollout.docker.shell import IN_SHELL, Command
from src.rollout.docker.shells import Shells

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
