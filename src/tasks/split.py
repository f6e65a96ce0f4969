"""Training tasks and held-out tasks: divided so that no family is on both sides, written down, and held to."""

import difflib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from src.errors import UserError
from src.rollout.task import Task
from src.run.files import write_json
from src.tasks.families import Overlap, families, overlaps_of
from src.tasks.identity import DUPLICATES, Identity, identify

SPLIT_FILE = "split.json"  # in a run directory
_VERSION = 1
_SHOWN = 3


def split_tasks(
    tasks: Sequence[Task],
    eval_split: float,
    eval_tasks: Sequence[str],
    seed: int,
    allow_family_overlap: bool = False,
) -> tuple[list[Task], list[Task]]:
    """Training tasks and held-out tasks, each in order of name; `eval_tasks` goes before `eval_split`.

    A share is drawn by whole families, so it is met as nearly as their sizes allow. `allow_family_overlap` lets
    instances of one family stand on both sides; the same task never does. Raises UserError: a name that is not there,
    nothing left to train on, named tasks that are (of a family with) training tasks.
    """
    if not eval_tasks and not eval_split:
        return list(tasks), []
    identities = {task.name: identify(task) for task in tasks}
    known = list(identities.values())
    if eval_tasks:
        held_out = set(eval_tasks)
        _refuse_unknown(held_out, list(identities))
    else:
        held_out = _draw(known if not allow_family_overlap else _only_duplicates(known), eval_split, seed)
    train = [task for task in tasks if task.name not in held_out]
    if not train:
        field = "eval_tasks" if eval_tasks else f"eval_split={eval_split:g}"
        raise UserError(f"{field}: all {len(tasks)} tasks are held out, none is left to train on; hold out fewer")
    kept = [task for task in tasks if task.name in held_out]
    _refuse_overlap(
        "eval_tasks",
        overlaps_of([identities[task.name] for task in train], [identities[task.name] for task in kept]),
        allow_family_overlap,
    )
    return train, kept


def split_record(train: Sequence[Task], held_out: Sequence[Task], allow_family_overlap: bool) -> dict[str, Any]:
    """What `check_split` and `check_held_out` need later, as JSON values: each task's side, digest and keys."""
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


def save_split(
    run: Path, train: Sequence[Task], held_out: Sequence[Task], allow_family_overlap: bool, resumed: bool
) -> None:
    """Write the split of a new run into its directory; of a resumed one, check it. Raises UserError: it differs."""
    file = run / SPLIT_FILE
    if not resumed:
        write_json(file, split_record(train, held_out, allow_family_overlap))
    elif file.exists():  # not in runs of earlier versions
        check_split(json.loads(file.read_text()), train, held_out, str(run))


def check_split(record: Mapping[str, Any], train: Sequence[Task], held_out: Sequence[Task], run: str) -> None:
    """Whether a resumed run has the tasks it was started with. Raises UserError naming the first that differ."""
    differences: list[str] = []
    for side, tasks, said in (("train", train, "trained on"), ("held_out", held_out, "held out")):
        before, now = record[side], {task.name: task.digest for task in tasks}
        differences += [f"{name} is {said} now, and was not" for name in now.keys() - before.keys()]
        differences += [f"{name} was {said}, and is not now" for name in before.keys() - now.keys()]
        differences += [f"{n} has changed" for n in now.keys() & before.keys() if now[n] != before[n]["digest"]]
    if differences:
        raise UserError(
            f"resume={run}: its tasks are not those it was started with: {_listed(sorted(differences))}; "
            "put them back, or start a new run"
        )


def check_held_out(
    record: Mapping[str, Any], tasks: Sequence[Task], run: str, allow_family_overlap: bool = False
) -> None:
    """Whether `run` may be evaluated on these tasks. Raises UserError: it was trained on one, or on its family."""
    trained = [
        Identity(name, known["digest"], tuple((reason, key) for reason, key in known["keys"]), known["declared"])
        for name, known in record["train"].items()
    ]
    found = overlaps_of(trained, list(map(identify, tasks)))
    _refuse_overlap(f"evaluation of {run}", found, allow_family_overlap or record["allow_family_overlap"])


def _refuse_overlap(field: str, found: Sequence[Overlap], allowed: bool) -> None:
    refused = [overlap for overlap in found if overlap.duplicate or not allowed]
    if refused:
        fix = "leave one of each pair out"
        if not any(overlap.duplicate for overlap in refused):
            fix += ", or set allow_family_overlap=true if new instances of known families are what you want to measure"
        raise UserError(f"{field}: {_listed(list(map(str, refused)))}; {fix}")


def _listed(parts: Sequence[str]) -> str:
    rest = len(parts) - _SHOWN
    return "; ".join(parts[:_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")


def _refuse_unknown(wanted: set[str], names: list[str]) -> None:
    for name in sorted(wanted.difference(names)):
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:3]
        raise UserError(f"eval_tasks: no task named {name!r}; near: {', '.join(near)}")


def _only_duplicates(tasks: Sequence[Identity]) -> list[Identity]:
    return [replace(task, keys=tuple(key for key in task.keys if key[0] in DUPLICATES)) for task in tasks]


def _draw(tasks: Sequence[Identity], share: float, seed: int) -> set[str]:
    """Names of whole families, drawn by seed until their tasks are as near the share as can be; at least one family.

    Never all of several families. Raises UserError: there is only one.
    """
    members: dict[str, list[str]] = defaultdict(list)
    for name, family in families(tasks).items():
        members[family].append(name)
    if len(members) == 1 and len(tasks) > 1:
        first, second = [task.name for task in tasks][:2]
        raise UserError(
            f"eval_split={share:g}: all {len(tasks)} tasks are of one family ({first}, {second}, ...), no other is "
            "there to hold out; name tasks in eval_tasks and set allow_family_overlap=true, or add other tasks"
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
