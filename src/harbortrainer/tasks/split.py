"""Splits tasks into a training set and a held-out set by whole families, and finds what the two have in common."""

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harbortrainer.durable.files import read_json
from harbortrainer.errors import UserError, some_of
from harbortrainer.tasks.identity import DUPLICATES, REASONS, SAME_ENVIRONMENT, SAME_USER, Identity
from harbortrainer.tasks.task import Task
from harbortrainer.tasks.venue import identify

SPLIT_FILE = "split.json"  # in a run directory
OWN_TEST = "@test"  # in eval_tasks
_VERSION = 1
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Overlap:
    """A held-out task, the training task that is most like it, and why."""

    train: str
    held_out: str
    reason: str

    @property
    def duplicate(self) -> bool:
        return self.reason in DUPLICATES

    def __str__(self) -> str:
        return f"{self.held_out} (held out) and {self.train} (training) have {self.reason}"


def overlaps(train: Sequence[Identity], held_out: Sequence[Identity]) -> list[Overlap]:
    """Return one for each held-out task that equals, or is of a family with, a training task; duplicates first."""
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
    """Map each task to the first task of its family, by name. Being related is transitive: a~b, b~c, so a~c."""
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
    """Return (name, name of an earlier task, reason) for each task that repeats another."""
    earlier: dict[tuple[str, str], str] = {}
    found: list[tuple[str, str, str]] = []
    for task in tasks:
        for reason, key in _strongest_first(task):
            if reason in DUPLICATES and (first := earlier.setdefault((reason, key), task.name)) != task.name:
                found.append((task.name, first, reason))
                break
    return found


def split_tasks(
    tasks: Sequence[Task],
    eval_split: float,
    eval_tasks: Sequence[str],
    seed: int,
    allow_family_overlap: bool = False,
) -> tuple[list[Task], list[Task]]:
    """Return training tasks and held-out tasks, each in order of name; `eval_tasks` goes before `eval_split`.

    `@test` among `eval_tasks` names the tasks that their data sets hold out themselves.

    A share is drawn by whole families, so it is met as nearly as their sizes allow. `allow_family_overlap` allows
    one family on both sides, but never the same task. Raises UserError for an unknown name, for nothing left to train
    on, and for named tasks that are, or are of a family with, training tasks.
    """
    if not eval_tasks and not eval_split:
        return list(tasks), []
    identities = {task.name: identify(task) for task in tasks}
    known = list(identities.values())
    if eval_tasks:
        held_out = _named(tasks, eval_tasks)
        for name in sorted(held_out - identities.keys()):
            near = difflib.get_close_matches(name, identities, n=3, cutoff=0.5) or list(identities)[:3]
            raise UserError(f"eval_tasks: no task named {name!r}; near: {', '.join(near)}")
    else:
        if allow_family_overlap:
            known = [replace(one, keys=tuple(key for key in one.keys if key[0] in DUPLICATES)) for one in known]
        held_out = _draw(known, eval_split, seed)
    train = [task for task in tasks if task.name not in held_out]
    if not train:
        field = "eval_tasks" if eval_tasks else f"eval_split={eval_split:g}"
        raise UserError(f"{field}: all {len(tasks)} tasks are held out, none is left to train on; hold out fewer")
    kept = [task for task in tasks if task.name in held_out]
    _refuse_overlap(
        "eval_tasks",
        overlaps([identities[task.name] for task in train], [identities[task.name] for task in kept]),
        allow_family_overlap,
    )
    return train, kept


def _named(tasks: Sequence[Task], eval_tasks: Sequence[str]) -> set[str]:
    """Raises UserError for @test where no data set has a split of its own."""
    sided = {task.name for task in tasks if task.side == "test"}
    if OWN_TEST in eval_tasks and not sided:
        raise UserError(f"eval_tasks={OWN_TEST}: no source has a test side of its own; name tasks or give eval_split")
    return {*eval_tasks} - {OWN_TEST} | (sided if OWN_TEST in eval_tasks else set())


def families_note(tasks: Sequence[Task], pattern: str | None) -> list[str]:
    """Return a line where names come in series and no pattern says so; [] = they do not."""
    named = {task.family for task in tasks if task.family}
    if not named or pattern is not None:
        return []
    sample = next(task for task in tasks if task.family)
    return [
        f"names come in series: {len(named)} families, such as {sample.family} of {sample.name}; each stays on one "
        "side of the split; family=REGEX names them otherwise, family= turns it off"
    ]


def users_note(train: Sequence[Task], held_out: Sequence[Task]) -> str:
    """Return a line on held-out tasks whose user also stands in training; "" = there is none."""
    known = {key for task in train if task.side for key in _users(task)}
    shared = [task for task in held_out if task.side and _users(task) & known]
    if not shared:
        return ""
    users = {key for task in shared for key in _users(task) & known}
    sided = sum(bool(task.side) for task in held_out)
    return (
        f"{len(shared)} of {sided} held-out tasks have a user who also stands in training ({len(users)} users); "
        "eval/reward_mean_clean is the mean of the others"
    )


def _users(task: Task) -> set[str]:
    return {key for reason, key in identify(task).keys if reason == SAME_USER}


def split_record(train: Sequence[Task], held_out: Sequence[Task], allow_family_overlap: bool) -> dict[str, Any]:
    """Return each task's side, digest, family and keys, as JSON values, for `check_split` and `check_held_out`."""
    read = {side: list(map(identify, tasks)) for side, tasks in (("train", train), ("held_out", held_out))}
    family = families([*read["train"], *read["held_out"]])
    sides = {
        side: {
            task.name: {"digest": task.content, "family": family[task.name], "declared": task.family, "keys": task.keys}
            for task in identities
        }
        for side, identities in read.items()
    }
    return {"version": _VERSION, "allow_family_overlap": allow_family_overlap, **sides}


def check_split(run: Path, train: Sequence[Task], held_out: Sequence[Task]) -> None:
    """Check that a resumed run has the tasks it was started with. Raises UserError naming the first that differ."""
    if not (run / SPLIT_FILE).exists():
        return  # a run of an earlier version
    record = read_json(run / SPLIT_FILE, "train", "held_out")
    differences: list[str] = []
    for side, tasks, verb in (("train", train, "trained on"), ("held_out", held_out, "held out")):
        before, now = record[side], {task.name: task.digest for task in tasks}
        differences += [f"{name} is {verb} now, and was not" for name in now.keys() - before.keys()]
        differences += [f"{name} was {verb}, and is not now" for name in before.keys() - now.keys()]
        differences += [f"{n} has changed" for n in now.keys() & before.keys() if now[n] != before[n]["digest"]]
    if differences:
        raise UserError(
            f"resume={run}: its tasks are not those it was started with: {some_of(sorted(differences), _SHOWN)}; "
            "put them back, or start a new run"
        )


def check_held_out(
    record: Mapping[str, Any], tasks: Sequence[Task], run: str, allow_family_overlap: bool = False
) -> None:
    """Check that `run` may be evaluated on these tasks. Raises UserError if it was trained on one, or on its family.

    The run's own `allow_family_overlap` allows nothing here: it is of its own split.
    """
    trained = [
        Identity(name, known["digest"], tuple((reason, key) for reason, key in known["keys"]), known["declared"])
        for name, known in record["train"].items()
    ]
    found = overlaps(trained, list(map(identify, tasks)))
    _refuse_overlap(
        f"evaluation of {run}", found, allow_family_overlap, "leave the first of each pair out (tasks_exclude)"
    )


def _refuse_overlap(
    field: str, found: Sequence[Overlap], allowed: bool, fix: str = "leave one of each pair out"
) -> None:
    refused = [overlap for overlap in found if overlap.duplicate or not allowed]
    if refused:
        if not any(overlap.duplicate for overlap in refused):
            fix += ", or set allow_family_overlap=true if new instances of known families are what you want to measure"
        raise UserError(f"{field}: {some_of(list(map(str, refused)), _SHOWN)}; {fix}")


def _draw(tasks: Sequence[Identity], share: float, seed: int) -> set[str]:
    """Names of tasks of whole families, drawn by seed until their number is as near the share as possible.

    At least one family, and never all of several. Raises UserError when there is only one.
    """
    members: dict[str, list[str]] = defaultdict(list)
    for name, family in families(tasks).items():
        members[family].append(name)
    if len(members) == 1 and len(tasks) > 1:
        first, second = [task.name for task in tasks][:2]
        raise UserError(
            f"eval_split={share:g}: all {len(tasks)} tasks are of one family ({first}, {second}, ...), none is "
            "left to hold out; name tasks in eval_tasks and set allow_family_overlap=true, or add other tasks"
        )
    wanted = max(1.0, share * len(tasks))
    groups = list(members.values())
    drawn: list[str] = []
    left = len(groups)
    for index in np.random.default_rng([seed, 7]).permutation(len(groups)):
        group = groups[int(index)]
        nearer = abs(len(drawn) + len(group) - wanted) < abs(len(drawn) - wanted)
        if nearer and (left > 1 or len(groups) == 1):
            drawn += group
            left -= 1
    return set(drawn or groups[int(np.argmin([len(group) for group in groups]))])


def _index(tasks: Iterable[Identity]) -> dict[tuple[str, str], list[Identity]]:
    index: dict[tuple[str, str], list[Identity]] = defaultdict(list)
    for task in tasks:
        for key in task.keys:
            index[key].append(task)
    return index


def _strongest_first(task: Identity) -> list[tuple[str, str]]:
    return sorted(task.keys, key=lambda key: REASONS.index(key[0]))


def _related(a: Identity, b: Identity, reason: str) -> bool:
    """Whether `reason` relates them: an environment does not, if their authors declare different families."""
    return reason != SAME_ENVIRONMENT or not (a.family and b.family and a.family != b.family)
