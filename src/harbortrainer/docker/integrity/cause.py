"""The causes of a reward: on what a grade may depend although no task asked for it. Pure: sets of paths, no I/O."""

import functools
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from harbortrainer.docker.integrity.asked import Asked, is_program, is_setting_name, is_shared
from harbortrainer.docker.integrity.change import ChangeKind, FileChange, is_made_anew, is_often_cleaned
from harbortrainer.docker.integrity.living import EPHEMERAL, is_of_user, is_system
from harbortrainer.docker.integrity.readers import MOST_PARENTS, Readers
from harbortrainer.docker.integrity.syscalls import SIGNAL
from harbortrainer.docker.integrity.watch import Process, Seen

PASSED_LINK = "link (removed)"  # among sockets: a symbolic one of a moment, of which nothing tells where it was
_LOG = re.compile("/logs/(?:agent|artifacts)/")  # which the trainer fills, too
_SYSTEM = ("/", "/dev")
_MOST_USUAL = 1023  # of ports, on which services listen by settings of the image


@dataclass(frozen=True)
class Changed:
    """What a container has changed since its image.

    `plain`: paths of regular files with content and the image's rights, which count if verification opened them.
    `shadows`: programs of which the image has one of the same name in another folder of programs. `targets`: where
    links lead. `packaged`: what a package manager's records list; `about`: files that describe a package.
    `mounted`: changed network files and devices, which a fresh container has anew. `late`: of `changes`, what processes
    of the policy made during verification. `named`: paths that verification did not open but may ask for by name;
    `told`: words of what tells it what to do. `made`: new folders. `is_new_name`: whether no file of the image has
    a name. `accounts`: lists of accounts with new ones alone that are work. `is_same`: whether a file
    has the image's content, and other rights or times alone; `is_text`: whether it has no content for a processor.
    `first`: processes that ran before the agent acted.
    """

    changes: tuple[FileChange, ...] = ()
    plain: Collection[str] = ()
    shadows: Collection[str] = ()
    targets: Mapping[str, str] = field(default_factory=dict)
    packaged: Collection[str] = ()
    about: Collection[str] = ()
    mounted: tuple[str, ...] = ()
    late: Collection[str] = ()
    named: Collection[str] = ()
    told: Set[str] = frozenset()
    made: Collection[str] = ()
    is_new_name: Callable[[str], bool] = lambda _: False
    accounts: Collection[str] = ()
    is_same: Callable[[str], bool] = lambda _: False
    is_text: Callable[[str], bool] = lambda _: True
    first: Collection[int] = ()


@dataclass
class Verdict:
    """The verdict on a trial's verifications. `unasked`: what a reward depends on although the task does not ask for
    it.

    `again`: further verifications. `installs`: whether one that could not install can in a container that no agent
    touched; None = that was not tried.
    """

    unasked: tuple[str, ...] = ()
    again: int = 0
    installs: bool | None = None


@dataclass(frozen=True)
class Causes:
    """What a reward may depend on although the task does not ask for it.

    `changes`: of files, those that count. `unasked`: they, and others that may count once these are gone; `work`: the
    rest. `late`: the part of `changes` that processes of the policy made during verification.
    `processes`: unasked ones that ran; `services`: asked ones; `sockets`: on which these began to listen. `hooked`:
    verification met it before any of the work, which the task's solution tells. `may_be_work`: it may be another
    way than the solution's, or the instruction of a task without a solution hints at it.
    """

    changes: tuple[FileChange, ...] = ()
    unasked: tuple[FileChange, ...] = ()
    work: tuple[FileChange, ...] = ()
    mounted: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    services: tuple[Process, ...] = ()
    tampered: tuple[str, ...] = ()
    late: tuple[FileChange, ...] = ()
    sockets: tuple[str, ...] = ()
    hooked: bool = False
    may_be_work: bool = False

    def __bool__(self) -> bool:
        return bool(self.changes or self.mounted or self.processes or self.tampered or self.sockets)

    @property
    def names(self) -> list[str]:
        """Paths and processes, sorted."""
        paths = {*(one.path for one in self.changes), *self.mounted, *self.tampered, *self.sockets}
        return [*sorted(paths), *(f"process {name}" for name in sorted({one.name for one in self.processes}))]


@dataclass
class _Judge:
    """The judgement of what a verification showed."""

    changed: Changed
    seen: Seen
    asked: Asked
    work: set[str] = field(default_factory=set)  # opened paths that the task asks for
    linked: set[str] = field(default_factory=set)  # to which links that it asks for lead

    def __post_init__(self) -> None:
        self.readers = Readers(self.seen, self.changed.targets)

    def causes(self) -> Causes:
        opened, served = self.seen.opened or {}, self._served()
        passed = served | {one.path for one in self.changed.changes if _LOG.match(one.path)}.difference(opened)
        own = [one for one in self.changed.changes if not is_made_anew(one.path) and one.path not in passed]
        # first of what can be one, since most files of the work are opened by nobody
        links = self.changed.targets
        some = [one for one in own if one.path in links or self._counts(one, ()) or self._is_strange(one, beside=False)]
        return self._causes_of(some) and self._causes_of(own)

    def _causes_of(self, own: Sequence[FileChange]) -> Causes:
        unasked = [one for one in own if not self._is_asked(one)]
        rest = {one.path for one in own} - {one.path for one in unasked}
        self.linked = {target for link, target in self.changed.targets.items() if link in rest}
        opened = self.seen.opened or ()
        self.work = {path for path in opened if path in rest or path in self.linked or self._is_named(path)}
        unasked = [one for one in unasked if not self._is_work(one)]
        services = tuple(one for one in self.seen.processes if self._is_service(one))
        held = {path for one in services for path in one.writes}
        living = tuple(one for one in self.seen.processes if self._matters(one) and one not in services)
        mounted = tuple(one for one in self.changed.mounted if not self.asked.allows(one))
        strange = {one.path for one in unasked if self._is_strange(one, beside=bool(services))}
        counts = tuple(one for one in unasked if one.path in strange or self._counts(one, held))
        left = {one.path for one in unasked}
        tampered = tuple(one for one in self.seen.tampered if one != SIGNAL or not self.asked.signals)
        first = self._first_of(counts)
        is_near = self.asked.is_near(first) or bool(self._subjects(first, ChangeKind.CHANGED))
        is_near |= first in self.asked.sums and first in self.asked.altered
        return Causes(
            counts,
            tuple(unasked),
            tuple(one for one in own if one.path not in left),
            mounted,
            processes=living,
            services=services,
            tampered=tampered,
            late=tuple(one for one in counts if one.path in self.changed.late),
            sockets=tuple(one for one in self.seen.sockets if not self._may_listen(one)),
            hooked=bool(tampered)
            or any(one in mounted for one in _SYSTEM)
            or (not is_near and self._came_first(first, rest))
            or self._is_no_service(living),
            may_be_work=is_near or any(self._may_be_work(one) for one in counts),
        )

    def _served(self) -> set[str]:
        """Late changes beside the work, which verification did not open."""
        if not self.changed.late or (opened := self.seen.opened) is None:
            return set()
        own = (one.path for one in self.changed.changes if one.path not in self.changed.late and self._is_asked(one))
        places = {posixpath.dirname(path) for path in own}
        closed = (path for path in self.changed.late if path not in opened)
        return {path for path in closed if posixpath.dirname(path) in places or self.asked.is_place(path)}

    def _matters(self, one: Process) -> bool:
        """Whether it acted, others meet what it holds or closed, or verification looked at it."""
        return one.ran or one.holds or self._is_seen(one) or any(str(port) in self.changed.told for port in one.ports)

    def _is_seen(self, one: Process) -> bool:
        """Whether verification listed processes, or opened files that tell of this one, which the agent started."""
        opened = self.seen.opened
        if one.pid in (0, *self.changed.first):
            return False
        return opened is None or "/proc" in opened or any(path.startswith(f"/proc/{one.pid}/") for path in opened)

    def _is_service(self, one: Process) -> bool:
        """Whether the task asks for it, and it did nothing to verification."""
        if one.pid == 1 or not self.asked.allows_process(one) or (one.ran and self.seen.unseen_memory):
            return False
        others = [port for port in one.ports if not self.asked.allows_socket(f"tcp {port}")]
        if any(port > _MOST_USUAL or str(port) in self.changed.told for port in others):
            return False
        return not any(self._is_told(name) for name in one.sockets if name.startswith("@"))

    def _is_told(self, name: str) -> bool:
        """Whether verification may ask for this socket, and nothing that the policy knows does."""
        path = PurePosixPath(f"/run/{name[1:]}" if name.startswith("@") else name)
        is_known = self.asked.has_solution or self.asked.speaks_of(str(path), whole=True)
        return path.name in self.changed.told and not is_known

    def _may_listen(self, socket: str) -> bool:
        """Programs take ports for a moment of which nobody else knows the number."""
        kind, _, port = socket.partition(" ")
        if socket == PASSED_LINK:
            return False
        if kind == "unix" and self._is_told(port):
            return False
        free = kind == "tcp" and int(port) >= EPHEMERAL and port not in self.changed.told
        return free or self.asked.allows_socket(socket)

    def _is_asked(self, one: FileChange) -> bool:
        """Of a folder's rights and the image's programs a solution tells better than a name; no word asks for these."""
        is_new = one.kind is ChangeKind.ADDED or one.path.startswith("/usr/local/")
        own = one.path in self.changed.shadows or (is_program(one.path) and not is_new)
        named = not (self.asked.has_solution and (own or one.shallow))
        return self.asked.allows(one.path, by_path=named, by_name=named and not own)

    def _counts(self, one: FileChange, held: Collection[str]) -> bool:
        opened = self.seen.opened
        if opened is None or one.path in opened or one.path in self.changed.named:
            return True
        if one.path in self.changed.late and one.kind is ChangeKind.ADDED:
            return False
        return one.path not in self.changed.plain and one.path not in held  # an empty log

    def _is_strange(self, one: FileChange, *, beside: bool) -> bool:
        """Whether a file, which verification may have looked for unseen, is new or changed where work leaves none.

        `beside`: services run, and need what is in a new folder, or in memory.
        """
        if one.path in self.changed.late and (beside or one.path not in self.seen.left):
            return False
        if self.asked.is_place(one.path) or is_often_cleaned(one.path):
            return False
        own = beside and posixpath.dirname(one.path) in self.changed.made
        return not own and one.path not in self.changed.packaged

    def _is_work(self, one: FileChange) -> bool:
        """Whether a change that the task does not ask for is work all the same: no program of verification needs it."""
        path = one.path
        if path in self.changed.shadows or path in self.asked.altered:
            return False
        if path == "/etc/localtime" and self._is_zone(self.changed.targets.get(path)):
            return True
        same_program = self.asked.is_twin_program(path, is_link=path in self.changed.targets)
        if path in self.linked:
            own = self.asked.has_solution and (is_system(path) or is_of_user(path))
            if same_program or not own:
                return one.kind is ChangeKind.ADDED
        is_module = path in self.changed.packaged and self.asked.is_same_module(path)
        if is_module or (path in self.changed.plain and self.asked.is_setting(path)):
            return True
        beside = one.kind is ChangeKind.ADDED and path in self.changed.plain
        name = posixpath.basename(path)
        is_twin = self.asked.is_twin(path) and self.changed.is_new_name(name)
        if beside and (is_twin or same_program):
            return name in self.asked.words or not self._is_before_work(path)
        if self._is_settings(one):
            return True
        if path in self.changed.packaged and (self.asked.installs or not self.asked.has_solution):
            named = self.asked.names_module(path) and not self.readers.are_before_tests(path)
            return named or path in self.changed.about or not self._is_before_work(path)
        if not self.asked.has_solution:
            return self._is_works_place(one)
        return beside and self._is_read_by_work(path, anywhere=path in self.changed.packaged)

    def _is_zone(self, target: str | None) -> bool:
        """Whether it is the time zone that the instruction wants, as the image or a package has it."""
        own = {one.path for one in self.changed.changes}.difference(self.changed.packaged)
        return target in self.asked.zones and target not in own

    def _is_works_place(self, one: FileChange) -> bool:
        """For tasks without a solution, in which nothing but the instruction tells what the work is."""
        if one.path in self.changed.accounts or (one.kind is ChangeKind.REMOVED and self.asked.is_area(f"{one.path}/")):
            return True
        if self.asked.is_new_place(one.path, self.changed.made):
            return not self._leads_writes(one)
        if self.asked.is_area(one.path):
            return not self._leads_writes(one) and (not self._is_before_work(one.path) or self._is_asked_by_tests(one))
        if one.path not in self.changed.plain:
            return self._is_out_of_sight(one)
        if one.kind is not ChangeKind.ADDED or self._is_verifications(one.path):
            return False
        return self._is_read_by_work(one.path, anywhere=not is_of_user(one.path))

    def _is_settings(self, one: FileChange) -> bool:
        """Whether the instruction speaks of what has these settings, or this state, and nothing else obeys them."""
        path, opened = one.path, self.seen.opened
        if opened is None or not (subjects := self._subjects(path, one.kind)):
            return False
        target = self.changed.targets.get(path, "")
        if is_program(target) and not self._subjects(target, ChangeKind.ADDED):
            return False
        if path not in opened:
            return True
        is_setting = path in self.changed.plain and is_setting_name(path) and self.changed.is_text(path)
        return is_setting and self.readers.are_asked(path, subjects)

    def _subjects(self, path: str, kind: ChangeKind) -> set[str]:
        return self.asked.subjects(path, self.changed.made, is_new=kind is ChangeKind.ADDED)

    def _is_named(self, path: str) -> bool:
        return self.asked.names_path(path) or self.asked.is_new_place(path, self.changed.made)

    def _leads_writes(self, one: FileChange) -> bool:
        """Whether what verification wrote went through a new link, or into a new pipe."""
        path = one.path
        for _ in range(MOST_PARENTS):
            path = self.changed.targets.get(path, path)
        return one.kind is ChangeKind.ADDED and one.path not in self.changed.plain and path in self.seen.written

    def _is_out_of_sight(self, one: FileChange) -> bool:
        """Whether verification cares for a deletion, a link, rights or the like, elsewhere than the work, as little as
        for a file that it does not open: not beside what it loads first, and not by a name that nobody told the policy.
        """
        path, opened = one.path, self.seen.opened
        if opened is None or self._is_verifications(path):
            return False
        if path in self.changed.named and not self.asked.speaks_of(path, whole=path in self._listeners):
            return False
        if one.kind is ChangeKind.CHANGED and path not in opened and path not in self.changed.targets:
            return not is_program(path)
        if is_system(path) or is_of_user(path):
            return False
        if one.kind is ChangeKind.REMOVED:
            return self.asked.deletes or is_often_cleaned(path)
        return path not in opened or self._is_read_by_work(path, anywhere=True)

    def _is_verifications(self, path: str) -> bool:
        return not self._places.isdisjoint((path, *map(str, PurePosixPath(path).parents)))

    @functools.cached_property
    def _places(self) -> set[str]:
        """Folders from which verification opens the image's files before the work, but for those of everybody."""
        changed = {one.path for one in self.changed.changes}
        before = (path for path in self.seen.opened or () if path not in changed and self._is_before_work(path))
        found = {posixpath.dirname(path) for path in before if not is_system(path) and not is_made_anew(path)}
        return {one for one in found if not is_shared(one) and not self.asked.is_place(f"{one}/")}

    @functools.cached_property
    def _listeners(self) -> set[str]:
        """Names of sockets on which asked services listen."""
        return {name for one in self.seen.processes if self.asked.allows_process(one) for name in one.sockets}

    def _is_asked_by_tests(self, one: FileChange) -> bool:
        """Whether the tests name a file, or the image has it, and none but they and programs that start no others
        opened it.

        What runs the tests, or other programs, reads its settings first. Rights alone are nobody's settings.
        """
        is_same = one.kind is ChangeKind.CHANGED and self.changed.is_same(one.path)
        of_image = one.kind is ChangeKind.CHANGED and "/." not in one.path and not is_same
        if one.path in self.changed.plain and (of_image or self._is_tested(one.path)):
            return self.readers.are_alone(one.path)
        return is_same

    def _is_tested(self, path: str) -> bool:
        """Whether the tests name it: `python3` in them is that of the image, wherever their PATH begins."""
        name = posixpath.basename(path)
        return self.asked.is_tested(path) and ("." in name or self.changed.is_new_name(name))

    def _is_before_work(self, path: str) -> bool:
        """Whether verification opened it before anything that the task asks for."""
        opened = self.seen.opened
        if opened is None:
            return True
        return path in opened and opened[path] < min((opened[one] for one in self.work), default=len(opened))

    def _is_read_by_work(self, path: str, *, anywhere: bool) -> bool:
        """Whether programs of the work alone opened it: processes that run what the task asks for, and their children.

        `anywhere`: not only beside or below what they run.
        """
        if path not in (opened := self.seen.opened or {}):
            return False
        runs = [run for run in self.work if opened[run] < opened[path]]
        near = [run for run in runs if anywhere or path.startswith(f"{PurePosixPath(run).parent}/")]
        return self.readers.run_work(path, near, runs, may_be_lost=not self.asked.has_solution)

    def _may_be_work(self, one: FileChange) -> bool:
        """In /etc, too: an honest line in a setting may be all of the work, which no word of the instruction names."""
        path, folder = one.path, posixpath.basename(posixpath.dirname(one.path))
        hinted = self.asked.speaks_of(path, whole=is_of_user(path)) or self.asked.means(folder)
        return not self.asked.has_solution and (hinted or self.asked.is_area(path) or path.startswith("/etc/"))

    def _is_no_service(self, living: Collection[Process]) -> bool:
        """Whether something goes on running although neither the solution nor the instruction wants that."""
        return bool(living) and self.asked.has_solution and not self.asked.runs

    def _came_first(self, met: str, allowed: Iterable[str]) -> bool:
        """Whether verification opened `met` before any of the work, which a solution tells."""
        opened = self.seen.opened or {}
        work = (opened[path] for path in allowed if path in opened)
        return bool(met) and self.asked.has_solution and opened[met] < min(work, default=len(opened))

    def _first_of(self, met: Iterable[FileChange]) -> str:
        """What verification opened first of these; "" = none, or no order is known."""
        opened = self.seen.opened or {}
        paths = (one.path for one in met if one.path in opened and one.path not in self.changed.about)
        return min(paths, key=opened.__getitem__, default="")


def causes_of(changed: Changed, seen: Seen, asked: Asked) -> Causes:
    """Return what the reward of a verification may depend on although the task does not ask for it."""
    return _Judge(changed, seen, asked).causes()
