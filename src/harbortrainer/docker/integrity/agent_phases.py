"""The agent's phases in a container: what is noted before it acts, and made ready before its work is verified."""

import contextlib
import logging
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence

from harbor.models.trial.paths import EnvironmentPaths

from harbortrainer.docker.box.command import IN_SHELL, ShellCommand
from harbortrainer.docker.box.container import NETWORK_FILES
from harbortrainer.docker.box.network_files import READ_NETWORK, added, is_same, parse_network
from harbortrainer.docker.box.root_folder import Unusual, changed_system, renew
from harbortrainer.docker.box.shell import Output, Shells
from harbortrainer.docker.daemon import call, pid_of
from harbortrainer.docker.images.image import Image
from harbortrainer.docker.integrity import processes
from harbortrainer.docker.integrity.asked import Footprint, is_program, sum_of, without_numbers
from harbortrainer.docker.integrity.change import is_made_anew
from harbortrainer.docker.integrity.living import shown
from harbortrainer.docker.integrity.restore import Stamps, Survey, restore_folder, stamps, survey
from harbortrainer.docker.integrity.watch import Process, look
from harbortrainer.errors import one_line
from harbortrainer.harbor import MODE

_SYSTEM = ("/", "/dev")
_SHOWN = 300  # bytes of what a program printed
CLOSE_SEC = 20.0  # for what makes a container ready for verification; the agent may have replaced its programs
SETTLE_TRIES, LOOK_SEC = 10, 0.3  # until what a solution has started waits for something
SETTLE_SEC = 60.0  # for what a busy machine starves
FULL = 0.8  # of the limit, which counts threads too
_AWAY = f"{EnvironmentPaths().logs_dir}/.before"  # where full folders of these names go
_TESTS, _REWARDS = str(EnvironmentPaths.tests_dir), str(EnvironmentPaths.verifier_dir)
_OF_TRAINER = (
    f"{EnvironmentPaths().solution_dir}/",
    f"{EnvironmentPaths().agent_dir}/",
)  # a script and its log are no work
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
{READ_NETWORK}"""
# Prints "D /dev" where the agent moved devices, put files in their place or took rights, "D FILE" for network files and
# "D /" where it took those.
_DEVICES = """d=
for l in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
[ -L /dev/${l%:*} ] && [ /dev/${l%:*} -ef /proc/self/${l#*:} ] || d=1
done
[ -z "$(command -v stat)" ] || {
[ "$(cd /dev && echo $(stat -c %a:%t:%T null zero full random urandom tty . pts shm mqueue))" = \\
"666:1:3 666:1:5 666:1:7 666:1:8 666:1:9 666:5:0 755:0:0 755:0:0 1777:0:0 1777:0:0" ] || d=1
for f in NETWORK; do [ "$(stat -c %a $f)" = 644 ] || echo "D $f"; done
case $(stat -c %A /) in ?r?xr-xr-x) ;; *) echo 'D /';; esac
}
[ -z "$d" ] || echo 'D /dev'
[ -d /tmp ] || mkdir -m 1777 /tmp""".replace("NETWORK", " ".join(NETWORK_FILES))
# Makes the folders again, whatever the agent put in their place; empties a mount point.
_CLEAN = f"""if [ -d /logs ] && [ ! -L /logs ] && rm -rf {_TESTS} {_REWARDS} 2>/dev/null; then
umask 022 && mkdir -p {_TESTS} && umask 0 && mkdir -p {_REWARDS}
exit
fi
for d in {_TESTS} {_REWARDS}; do
p=${{d%/*}}; [ -z "$p" ] || {{ [ -d "$p" ] && [ ! -L "$p" ]; }} || rm -rf "$p"
rm -rf "$d" 2>/dev/null || rm -rf "$d"/* "$d"/.[!.]* "$d"/..?*
mkdir -p "$d"
done
chmod 755 {_TESTS} && chmod 777 {_REWARDS}"""


class AgentPhases:
    """The agent's phases in a container. `before`: paths written before the agent acted; `first`: what processes were
    called then that still are, by number; `kept`: services of the image, as the daemon's machine numbers them.

    `closed`: its phase was closed; `mounted`: what had changed then of its network files, devices and root, which no
    layer shows, with the lines that a network file has more, if that is all; `found`: what the container had changed
    when that was noted last.
    """

    def __init__(self, container: str, shells: Shells, run_id: str) -> None:
        self.closed = False
        self.kept = frozenset[int]()
        self.found: Survey | None = None
        self.mounted: dict[str, str] = {}
        self._container = container
        self._shells = shells
        self._run_id = run_id
        self._image: Image | None = None
        self._network: Mapping[str, str] = {}  # the content of each file that Docker mounts
        self.before: Stamps = {}
        self.first: Mapping[int, str] = {}
        self.image_has_tests = self._noted = False

    async def prepare(self, image: Image, directory: str, make: str) -> None:
        """Make Harbor's folders by the command `make`, and note what the image has, in one round trip.

        Raises RuntimeError when the image lacks `directory` or the folders cannot be made.
        """
        self._image = image
        mark = f"made-{self._container}"
        output = await self._shells.run(
            ShellCommand(f"{IN_SHELL}\n{{ {make}; }} || exit 1\necho {mark}\n{_LISTED}", directory), user="root"
        )
        _, made, facts = output.stdout.decode(errors="replace").partition(f"{mark}\n")
        if not made and output.return_code == 126:
            raise RuntimeError(f"task.toml: workdir={directory} is not in the image")
        if not made:
            raise RuntimeError(f"container {self._container}: cannot make Harbor's folders: {_errors(output)}")
        self.image_has_tests = facts.startswith(f"{_TESTS}\n")
        self._network = parse_network(facts)

    async def open(self) -> None:
        """Note services and files of the image (first phase); end what a verifier left (later ones)."""
        if self._noted:
            await self._end_verifier()
        elif self._image:
            if self._image.entrypoint:
                self.kept = await processes.services(self._container)
            self.before, self.first = await call(stamps, self._container), await call(_shown, self._container)
        self._noted, self.closed = True, False

    async def close(self) -> None:
        """Make the folders of tests and rewards again; close idle shells.

        The agent's processes live on: what they or the agent's files spoil is for verification to find. Raises
        docker.errors.APIError.
        """
        if self._image is None:
            raise RuntimeError("the environment was not started")
        left, changed, now = await call(_unusual, self._container, self._network)
        self.closed, self.mounted = True, changed
        self.first = dict(self.first.items() & now.items())
        if left:
            await self._make_ready(left)
        if self.image_has_tests:
            await call(restore_folder, self._container, self._image, _TESTS, self._run_id)
        self._shells.drop()

    async def note_changes(self) -> None:
        """Note what the container has changed. Raises docker.errors.APIError."""
        self.found = await call(survey, self._container, self.before)

    async def _make_ready(self, scripts: Sequence[str]) -> None:
        """Do in the container what could not be done from outside."""
        command = ShellCommand("\n".join([IN_SHELL, *scripts, "true"]))
        try:
            output = await self._shells.run(command, user="root", seconds=CLOSE_SEC)
        except (RuntimeError, TimeoutError) as error:  # no shell starts, or a program does not end
            why = one_line(error) or f"a program did not end within {CLOSE_SEC:g} s"
            _log.warning("%s could not be made ready for verification: %s", self._container, why)
            self.mounted = dict.fromkeys((*self._network, *_SYSTEM), "")
            return
        if output.return_code != 0:
            _log.warning("%s: %s and %s cannot be made again: %s", self._container, _TESTS, _REWARDS, _errors(output))
        printed = output.stdout.decode(errors="replace")
        found = parse_network(printed) if READ_NETWORK in scripts else self._network
        same = {file for file, known in self._network.items() if file in found and is_same(found[file], known)}
        other = {file: added(found.get(file, ""), known) for file, known in self._network.items() if file not in same}
        marked = [one for one in (*NETWORK_FILES, *_SYSTEM) if f"D {one}" in printed.split("\n")]
        self.mounted |= other | dict.fromkeys(marked, "")

    async def restore_mounted(self) -> None:
        """Give what is mounted its content and rights again; a device that is gone cannot be made here."""
        files = [(one, shlex.quote(self._network[one])) for one in self.mounted if one in self._network]
        lines = [f"printf %s {text} > {one}; chmod 644 {one}" for one, text in files]
        if "/dev" in self.mounted:
            lines.append(
                "cd /dev && chmod 755 . pts; chmod 1777 shm mqueue; chmod 666 null zero full random urandom tty"
            )
        await self._shells.run(ShellCommand("\n".join([*lines, "true"])), user="root", seconds=CLOSE_SEC)

    def takes_over(self, other: "AgentPhases") -> None:
        """Call it after `prepare`: the container goes on with what `other` had."""
        self._image, self.image_has_tests = other._image, other.image_has_tests
        self._network, self.before = other._network, {}

    async def observe(self) -> Footprint:
        """Return what a task's solution has changed and leaves, which ran as the agent."""
        await self.close()
        left = await self._left()
        await self.note_changes()  # also what services write as they start
        assert self.found is not None and self._image is not None
        changed = {one.path for one in self.found.changes if not is_made_anew(one.path)} | set(self.mounted)
        paths = {path for path in changed if not f"{path}/".startswith(_OF_TRAINER)}
        ports = frozenset(port for one in left for port in one.ports)
        names = frozenset(one.name for one in left if not one.ports)
        sockets = frozenset(without_numbers(name) for one in left for name in one.sockets if name.startswith("@"))
        layer = self.found.layer
        programs = list(filter(is_program, paths)) if layer.image else []  # else the daemon would read one by one
        sums = await call(lambda: frozenset(f"{path} {sum_of(path, layer.content(path))}" for path in programs))
        return Footprint(frozenset(paths), self.found.made, ports, names, sockets, sums)

    async def _left(self) -> tuple[Process, ...]:
        """The processes of the agent, once they wait for something."""
        tries, give_up = 0, time.monotonic() + SETTLE_SEC
        while True:
            seen = await look(self._container, self._run_id, self.kept, LOOK_SEC)
            left = tuple(one for one in seen if one.pid != 1)
            tries += 1
            works = any(one.ran if tries < SETTLE_TRIES else one.busy for one in left)
            if not works or time.monotonic() > give_up:
                return left

    async def end(self, pids: Iterable[int]) -> None:
        """End processes of the agent, as the container numbers them."""
        if others := [pid for pid in pids if pid > 1]:
            await self._shells.run(
                ShellCommand(f"kill -s KILL {' '.join(map(str, others))} 2>/dev/null; true"), user="root"
            )

    async def relieve(self, limit: int) -> None:
        """End all processes if they have used up the container's `limit`, so that no command could start."""
        if await processes.count(self._container) >= FULL * limit:
            _log.warning("%s: all %d processes are in use; they are ended", self._container, limit)
            await processes.end(self._container, self._shells)

    async def _end_verifier(self) -> None:
        """End what the last step's verifier left, and the shells that ran it: the next phase could read the mode."""
        for user in self._shells.users:
            await self._shells.run(ShellCommand(_END_VERIFIER), user=user)
        self._shells.drop()


def _shown(container: str) -> dict[int, str]:
    """What its processes are called; {} = they are not this machine's. Blocking."""
    with contextlib.suppress(OSError):
        return shown(pid_of(container))
    return {}


def _unusual(container: str, network: Mapping[str, str]) -> tuple[list[str], dict[str, str], dict[int, str]]:
    """The scripts for what could not be made ready from outside, what was changed of the system, and `_shown`.

    `network`: content of network files. Blocking.
    """
    left, changed = list[str](), dict[str, str]()
    try:
        changed = changed_system(container, network)
    except Unusual:
        left += [READ_NETWORK, _DEVICES]
    try:
        renew(container, {_TESTS: 0o755, _REWARDS: 0o777}, _AWAY)
    except Unusual:
        left.append(_CLEAN)
    return left, changed, _shown(container)


def _errors(output: Output) -> str:
    return one_line(output.stderr[-_SHOWN:].decode(errors="replace"))
