"""Tasks of one set that are close to another's: they share 13 words in a row, or are related as families are."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from harbortrainer.durable.facts import fact
from harbortrainer.errors import some_of
from harbortrainer.tasks.folders import folder_of
from harbortrainer.tasks.split import families, overlaps
from harbortrainer.tasks.task import FOLDERS, Task
from harbortrainer.tasks.venue import identify

WORDS = 13
_INSTRUCTION = "instruction"
_PARTS = {_INSTRUCTION: "instruction.md", "tests": "tests", "files": "environment"}
_COMMON = 3  # families of the other set that share words: they are a form of its authors, no content
_MOST_BYTES, _SHOWN = 2**20, 3  # of a file that are read; pairs that a line names
_NOTHING = np.empty(0, np.uint64)
_FACTORS = np.array([pow(0x9E3779B97F4A7C15, n, 2**64) for n in range(WORDS)], np.uint64)


@dataclass(frozen=True, slots=True)
class Near:
    """Two tasks. `why`: "the same instruction", or parts with the number of 13-grams that they share. `related`: the
    former.
    """

    name: str
    other: str
    why: str
    related: bool

    def __str__(self) -> str:
        return f"{self.name} and {self.other}: {self.why}"


class Known:
    """The 13-grams of a set's tasks, by task, without those that _COMMON of its families share.

    `wanted`: only these matter; what a task has of them is kept on disk.
    """

    def __init__(self, tasks: Sequence[Task], wanted: np.ndarray | None = None) -> None:
        family = families(list(map(identify, tasks)))
        key = "" if wanted is None else hashlib.sha256(wanted.tobytes()).hexdigest()[:16]
        of_task = {task.name: _all_of(task) if wanted is None else _kept(task, wanted, key) for task in tasks}
        of_family: dict[str, list[np.ndarray]] = {}
        for name, grams in of_task.items():
            of_family.setdefault(family[name], []).append(grams)
        all_of = [_union(parts) for parts in of_family.values()]
        values, counts = np.unique(np.concatenate([_NOTHING, *all_of]), return_counts=True)
        self.grams = values[counts < _COMMON]
        self._of_task = of_task

    def nearest(self, grams: np.ndarray) -> str:
        """Return the task with the most of these grams; "" = none has one."""
        shared = {name: _both(grams, own).size for name, own in self._of_task.items()} if grams.size else {}
        best = max(shared, key=lambda name: shared[name], default="")
        return best if best and shared[best] else ""

    def task_of(self, text: str) -> str:
        """Return the task that shares words with a text; "" = none."""
        return self.nearest(_both(grams_in(text), self.grams))


def grams_in(text: str) -> np.ndarray:
    """Return a number for each different run of WORDS words, without case and punctuation; sorted uint64 (N,)."""
    words = np.array([_number(word) for word in re.findall(r"\w+", text.lower())], np.uint64)
    if len(words) < WORDS:
        return _NOTHING
    return np.unique((np.lib.stride_tricks.sliding_window_view(words, WORDS) * _FACTORS).sum(1, dtype=np.uint64))


def _both(grams: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return what two sorted arrays of different numbers share, without a sort of `others`, which may be millions."""
    return grams[np.searchsorted(others, grams) < np.searchsorted(others, grams, "right")]


def close(tasks: Sequence[Task], others: Sequence[Task]) -> list[Near]:
    """Return those of `tasks` that are close to one of `others`.

    Of tests and files what _COMMON families of `tasks` share is no content, of instructions what a third of them share.
    """
    identities = list(map(identify, tasks))
    related = {one.held_out: (one.train, one.reason) for one in overlaps(list(map(identify, others)), identities)}
    own = {task.name: _grams_of(task) for task in tasks}
    known = Known(others, _union(grams for parts in own.values() for grams in parts.values()))
    shared = {name: {part: _both(g, known.grams) for part, g in parts.items()} for name, parts in own.items()}
    common = _common(shared, families(identities))
    found: list[Near] = []
    for name, parts in shared.items():
        left = {part: np.setdiff1d(grams, common[part]) for part, grams in parts.items()}
        why = ", ".join(f"{len(grams)} 13-grams of its {part}" for part, grams in left.items() if grams.size)
        other, reason = related.get(name) or (known.nearest(_union(left.values())), "")
        if reason or why:
            found.append(Near(name, other, reason or why, bool(reason)))
    return found


def _common(shared: Mapping[str, Mapping[str, np.ndarray]], family: Mapping[str, str]) -> dict[str, list[int]]:
    """By part, what too many families share."""
    holders: dict[str, dict[int, set[str]]] = {part: {} for parts in shared.values() for part in parts}
    for name, parts in shared.items():
        for part, grams in parts.items():
            for gram in grams.tolist():
                holders[part].setdefault(gram, set()).add(family[name])
    third = max(_COMMON, len(set(family.values())) // 3 + 1)
    most = {part: third if part == _INSTRUCTION else _COMMON for part in holders}
    return {part: [gram for gram, of in grams.items() if len(of) >= most[part]] for part, grams in holders.items()}


def close_note(train: Sequence[Task], held_out: Sequence[Task]) -> Iterator[str]:
    """Get a line on held-out tasks that share words with training tasks of other families; none = nothing is shared."""
    found = [near for near in close(held_out, train) if not near.related]
    if found:
        named = some_of(list(map(str, found)), _SHOWN)
        yield f"{len(found)} of {len(held_out)} held-out tasks share {WORDS} words in a row with training: {named}"


def _grams_of(task: Task) -> dict[str, np.ndarray]:
    """By part; of tasks without folders none."""
    return _read(folder_of(task), task.digest) if task.venue == FOLDERS else {"": _NOTHING}


def _union(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate([_NOTHING, *parts]))


def _all_of(task: Task) -> np.ndarray:
    return _union(_grams_of(task).values())


def _kept(task: Task, wanted: np.ndarray, key: str) -> np.ndarray:
    """What a task has of `wanted`, which `key` names."""
    if task.venue != FOLDERS:
        return _NOTHING
    name = f"13-grams {task.digest} {key}"
    return np.array(fact(folder_of(task), name, lambda: _both(_all_of(task), wanted).tolist()), np.uint64)


@lru_cache(maxsize=4096)
def _read(folder: Path, _digest: str) -> dict[str, np.ndarray]:
    roots = (folder, *sorted((folder / "steps").glob("*")))
    return {part: grams_in(" \n".join(_texts(root / top for root in roots))) for part, top in _PARTS.items()}


def _texts(places: Iterable[Path]) -> Iterator[str]:
    for place in places:
        for file in [place] if place.is_file() else sorted(place.rglob("*")):
            if file.is_file() and b"\0" not in (content := file.read_bytes()[:_MOST_BYTES]):
                yield content.decode(errors="replace")


@lru_cache(maxsize=2**17)
def _number(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
