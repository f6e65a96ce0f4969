"""The causes of a reward: what a task asks for, and what else a grade may depend on. Pure: sets of paths, no I/O."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from harbortrainer.docker.layer import Change
from harbortrainer.docker.watch import Process, Seen

_MADE_ANEW = re.compile(r"/(tests|logs|dev|proc|sys)(/.*)?|/solution(/.*)?")
_DIGEST = re.compile(r"(?<=/)(?:[0-9a-f]{2}/[0-9a-f]{30,}|[0-9a-f]{32,})")  # a content's name
_PATH = re.compile(r"(?<![\w.~-])(?:/[\w.@+~-]*[\w@+~-])+")  # without the full stop of a sentence
_WORD = re.compile(r"[\w.@+-]*\w")
_PORT = re.compile(r"(?<![\w.])\d{2,5}(?![\w.]*\w)")
LEAST_NAME = 3  # characters of a file's name in an instruction


@dataclass(frozen=True)
class Footprint:
    """What a task's solution changes and leaves. `made`: folders that it made; `ports`: on which something listens.

    `processes`: names of those that it leaves.
    """

    paths: frozenset[str] = frozenset()
    made: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset()
    processes: frozenset[str] = frozenset()


class Asked:
    """What a task asks for: its solution's footprint, and what its instruction names."""

    def __init__(self, footprint: Footprint | None, instruction: str, work: str = "") -> None:
        """`footprint`: None = the task has no solution that runs; `work`: the working directory."""
        self.has_solution = footprint is not None
        self._work = f"{work.rstrip('/')}/"
        footprint = self._footprint = footprint or Footprint()
        self._paths = {_normal(path) for path in (*footprint.paths, *_PATH.findall(instruction))}
        self._words = set(_WORD.findall(instruction))
        self._ports = footprint.ports | {int(port) for port in _PORT.findall(instruction)}

    def allows(self, path: str, *, by_name: bool = True) -> bool:
        """Whether the task asks for a change at `path`. `by_name`: its name in the instruction will do."""
        if _normal(path) in self._paths or (by_name and self._names(path)):
            return True
        return any(str(above) in self._footprint.made for above in PurePosixPath(path).parents)

    def _names(self, path: str) -> bool:
        """Whether the instruction has the name of this file: any word in the working directory, else as x.y."""
        name = PurePosixPath(path).name
        is_work = len(self._work) > 1 and path.startswith(self._work)
        return name in self._words and (is_work or (len(name) >= LEAST_NAME and "." in name))

    def allows_process(self, process: Process) -> bool:
        """Whether it may live during verification."""
        if process.ports:
            return self._ports.issuperset(process.ports)
        return process.name in self._footprint.processes


@dataclass
class Verdict:
    """Of a trial's verifications. `unasked`: what a reward depends on although the task does not ask for it.

    `again`: verifications in a fresh container.
    """

    unasked: tuple[str, ...] = ()
    again: int = 0


@dataclass(frozen=True)
class Causes:
    """What a reward may depend on although the task does not ask for it.

    `changes`: of files, those of the `unasked` ones that count; the others may count without them. `mounted`: network
    files and devices, which a fresh container has anew. `processes`: names of living ones. `hooked`: verification met
    it before any of the work, which the task's solution tells.
    """

    changes: tuple[Change, ...] = ()
    unasked: tuple[Change, ...] = ()
    mounted: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    tampered: tuple[str, ...] = ()
    hooked: bool = False

    def __bool__(self) -> bool:
        return bool(self.changes or self.mounted or self.processes or self.tampered)

    @property
    def names(self) -> list[str]:
        """Paths and processes, sorted."""
        paths = {*(one.path for one in self.changes), *self.mounted, *self.tampered}
        return [*sorted(paths), *(f"process {name}" for name in sorted(set(self.processes)))]


def causes_of(
    changes: Iterable[Change], plain: Collection[str], mounted: Iterable[str], seen: Seen, asked: Asked
) -> Causes:
    """`plain`: paths of regular files with content, which count if verification opened them; all else counts."""
    own = [one for one in changes if not is_made_anew(one.path)]
    unasked = [one for one in own if not asked.allows(one.path, by_name=not one.shallow)]
    allowed = {one.path for one in own} - {one.path for one in unasked}
    opened, held = seen.opened, {path for one in seen.processes if asked.allows_process(one) for path in one.writes}
    met = [
        one
        for one in unasked
        if opened is None or one.path in opened or (one.path not in plain and one.path not in held)  # an empty log
    ]
    tampered = tuple(seen.tampered)
    living = tuple(one.name for one in seen.processes if one.ran and not asked.allows_process(one))
    hooked = bool(tampered) or (asked.has_solution and opened is not None and _came_first(met, allowed, opened))
    changed = tuple(one for one in mounted if not asked.allows(one))
    return Causes(tuple(met), tuple(unasked), changed, living, tampered, hooked)


def _came_first(met: Iterable[Change], allowed: Iterable[str], opened: Mapping[str, int]) -> bool:
    """Whether verification opened something unasked before any of the work."""
    hooks = [opened[one.path] for one in met if one.path in opened]
    work = [opened[path] for path in allowed if path in opened]
    return bool(hooks) and min(hooks) < min(work, default=len(opened))


def is_made_anew(path: str) -> bool:
    """Whether verification makes it again, or it is no file of the container's layer."""
    return _MADE_ANEW.fullmatch(path) is not None


def _normal(path: str) -> str:
    return _DIGEST.sub("#", path)
