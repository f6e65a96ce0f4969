"""Families of tasks, and what a training set and a held-out set have in common."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from src.rollout.task import Task
from src.tasks.identity import DUPLICATES, REASONS, SAME_ENVIRONMENT, Identity, identify


@dataclass(frozen=True, slots=True)
class Overlap:
    """A held-out task, the training task that is nearest to it, and why."""

    train: str
    held_out: str
    reason: str

    @property
    def duplicate(self) -> bool:
        return self.reason in DUPLICATES

    def __str__(self) -> str:
        return f"{self.held_out} (held out) and {self.train} (training) have {self.reason}"


def overlaps(train: Iterable[Task], held_out: Iterable[Task]) -> list[Overlap]:
    """One for each held-out task that is the same as, or of a family with, a training task; duplicates first."""
    return overlaps_of([identify(task) for task in train], [identify(task) for task in held_out])


def overlaps_of(train: Sequence[Identity], held_out: Sequence[Identity]) -> list[Overlap]:
    """`overlaps` of tasks that have been read already."""
    index = _index(train)
    found: list[Overlap] = []
    for task in held_out:
        for reason, key in _strongest_first(task):
            near = next((other for other in index.get((reason, key), ()) if _related(other, task, reason)), None)
            if near is not None:
                found.append(Overlap(near.name, task.name, reason))
                break
    return sorted(found, key=lambda overlap: REASONS.index(overlap.reason))


def families(tasks: Sequence[Identity]) -> dict[str, str]:
    """Name of each task -> name of the first task of its family. Relations are followed through: a~b, b~c, so a~c."""
    parent = {task.name: task.name for task in tasks}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for (reason, _), members in _index(tasks).items():
        firsts: dict[str, str] = {}  # by declared family
        for task in members:
            apart = task.family if reason == SAME_ENVIRONMENT else ""
            for family in firsts if apart == "" else {apart, ""} & firsts.keys():
                a, b = sorted((root(task.name), root(firsts[family])))
                parent[b] = a
            firsts.setdefault(apart, task.name)
    return {task.name: root(task.name) for task in tasks}


def duplicates(tasks: Sequence[Identity]) -> list[tuple[str, str, str]]:
    """(name, name of an earlier task, reason) for each task that is another one again."""
    earlier: dict[tuple[str, str], str] = {}
    found: list[tuple[str, str, str]] = []
    for task in tasks:
        for reason, key in _strongest_first(task):
            if reason in DUPLICATES and (first := earlier.setdefault((reason, key), task.name)) != task.name:
                found.append((task.name, first, reason))
                break
    return found


def _index(tasks: Iterable[Identity]) -> dict[tuple[str, str], list[Identity]]:
    index: dict[tuple[str, str], list[Identity]] = defaultdict(list)
    for task in tasks:
        for key in task.keys:
            index[key].append(task)
    return index


def _strongest_first(task: Identity) -> list[tuple[str, str]]:
    return sorted(task.keys, key=lambda key: REASONS.index(key[0]))


def _related(a: Identity, b: Identity, reason: str) -> bool:
    """An environment joins no two tasks whose authors say that they are of different families."""
    return reason != SAME_ENVIRONMENT or not (a.family and b.family and a.family != b.family)
