"""Loads a run's tasks from its sources: selects them by globs, checks weights, names families of series."""

import contextlib
import fnmatch
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harbortrainer.durable.files import read_value
from harbortrainer.errors import UserError
from harbortrainer.plugins import known
from harbortrainer.tasks.fetch import find_folder
from harbortrainer.tasks.task import FOLDERS, Task
from harbortrainer.tasks.venue import venue, wrong_answer

SOURCES_FILE = "sources.json"  # in a run directory
MOST_WEIGHT = 1000  # an epoch lists a task as often


@dataclass(frozen=True, slots=True)
class Source:
    """A source. `given`: as the user wrote it. `name`: the last part of its path, with more parts where two are equal.

    `path`: what the venue finds the tasks by. `version`: a commit, NAME@VERSION, or that of a package; "" = none.
    """

    given: str
    name: str
    path: str
    version: str
    venue: str = FOLDERS


def find_sources(tasks_dir: str) -> list[Source]:
    """Get sources in `a,b`: VENUE:NAME or MODULE:VENUE:NAME, folders, `git+URL[@REV][#FOLDER]`, `[ORG/]NAME@VERSION`,
    fetched if missing. A folder goes before a name of the registry.

    Raises UserError.
    """
    given = [part.strip() for part in tasks_dir.split(",") if part.strip()]
    if not given:
        raise UserError(f"tasks_dir={tasks_dir}: names no folder; give a folder of task directories")
    found = [_find(one) for one in given]
    names = _names([Path(path) if place == FOLDERS else _named(path) for path, _, place in found])
    parts = zip(given, names, found, strict=True)
    return [Source(one, name, path, version, place) for one, name, (path, version, place) in parts]


def load_sources(
    sources: Sequence[Source], include: Sequence[str] = (), exclude: Sequence[str] = (), family: str | None = None
) -> list[Task]:
    """Return tasks of all sources that match a glob of `include` (empty = all) and none of `exclude`.

    `family`: as `name_families` takes it, for all tasks together.
    A glob is matched with NAME and with SOURCE/NAME. A name in several sources becomes SOURCE/NAME. Raises UserError
    for a broken folder, a glob that matches nothing, and when no task is left.
    """
    chosen: list[Task] = []
    for source, names in chosen_names(sources, include, exclude).items():
        excluded = [name for name, wanted in names.items() if not wanted]
        for task in _loaded(source, excluded):
            chosen.append(replace(task, source=source.name, domain=task.domain or source.name, venue=source.venue))
    chosen = with_families(chosen, family)
    if not chosen:
        raise UserError(f"tasks_exclude={','.join(exclude)}: leaves no task")
    counts = Counter(task.name for task in chosen)
    return [replace(t, name=f"{t.source}/{t.name}") if counts[t.name] > 1 else t for t in chosen]


def chosen_names(
    sources: Sequence[Source], include: Sequence[str], exclude: Sequence[str]
) -> dict[Source, dict[str, bool]]:
    """Return for each source the names of its tasks, and whether the globs choose them.

    Raises UserError as `load_sources`.
    """
    names = {source: venue(source.venue).names(source.path) for source in sources}
    for source, listed in names.items():
        if not isinstance(listed, list):
            raise wrong_answer(source.given, "names", listed, "a list of names")
    found = [(source.name, name) for source in sources for name in names[source]]
    for field, globs in (("tasks_include", include), ("tasks_exclude", exclude)):
        for glob in globs:
            if not any(_matches(source, name, glob) for source, name in found):
                such = f", such as {found[0][1]}" if found else ""
                raise UserError(f"{field}={glob}: matches none of {len(found)} tasks{such}")
    return {
        source: {name: _chosen(source.name, name, include, exclude) for name in of_source}
        for source, of_source in names.items()
    }


def with_families(tasks: Sequence[Task], pattern: str | None) -> list[Task]:
    """Return the tasks with their families by name. Raises UserError for a wrong pattern."""
    known = name_families([task.name for task in tasks], pattern)
    return [replace(task, family=family) if (family := known.get(task.name)) else task for task in tasks]


def check_weights(weights: Mapping[str, Any], sources: Sequence[Source]) -> dict[str, float]:
    """Get weights by source name. Raises UserError for an unknown source, or a weight that is not a number above 0."""
    names = [source.name for source in sources]
    for name, weight in weights.items():
        if name not in names:
            raise UserError(f"task_weights.{name}: no such source; one of {', '.join(names)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= MOST_WEIGHT:
            most = f"must be a number above 0, {MOST_WEIGHT} at most"
            raise UserError(f"task_weights.{name}={weight}: {most}; leave tasks out by tasks_exclude")
    return {name: float(weight) for name, weight in weights.items()}


def sources_record(sources: Sequence[Source], weights: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the sources as JSON values for the run's directory; digests of the tasks are in its split.json."""
    return [asdict(source) | {"weight": weights.get(source.name, 1.0)} for source in sources]


def tasks_of(file: Path, digests: Collection[str]) -> list[Task]:
    """Return those of the tasks in a run's sources.json that are still there, with these digests."""
    found: list[Task] = []
    for one in read_value(file) if file.is_file() else ():
        with contextlib.suppress(UserError):  # moved, or deleted
            place = one.get("venue", FOLDERS)
            found += [replace(task, venue=place) for task in venue(place).load(one["path"], ())]
    return [task for task in found if task.digest in digests]


def _loaded(source: Source, excluded: Collection[str]) -> list[Task]:
    """The tasks of a source but those excluded. Raises UserError for another answer of its venue, or a name twice."""
    tasks = venue(source.venue).load(source.path, excluded)
    if not isinstance(tasks, list) or not all(isinstance(task, Task) for task in tasks):
        raise wrong_answer(source.given, "load", tasks, "a list of Task")
    if len({task.name for task in tasks}) < len(tasks):
        raise UserError(f"tasks_dir={source.given}: its venue has two tasks of one name; give each its own")
    return [task for task in tasks if task.name not in excluded]


def _find(given: str) -> tuple[str, str, str]:
    """Path, version and venue of one source. Raises UserError."""
    if Path(given).expanduser().is_dir() or (name := _venue_in(given)) is None:
        return *find_folder(given), FOLDERS
    found = venue(name).find(given.removeprefix(f"{name}:"))
    if not isinstance(found, tuple) or [type(one) for one in found] != [str, str]:
        raise wrong_answer(given, "find", found, "(path, version)")
    return *found, name


def _venue_in(given: str) -> str | None:
    """The venue of `VENUE:NAME` or `MODULE:ATTRIBUTE:NAME`; None = the source names none. Raises UserError."""
    first, *rest = given.split(":", 2)
    if len(rest) == 1 and first.endswith(".py"):
        raise UserError(f"tasks_dir={given}: names no tasks; give {given}:NAME, a source of this venue")
    if rest and first in known("venues"):
        return first
    outside = len(rest) == 2 and rest[0].isidentifier() and (first.endswith(".py") or "/" not in first)
    return f"{first}:{rest[0]}" if outside else None


def _named(place: str) -> Path:
    """`VENUE:NAME@SIDE` as a path that ends with the name."""
    name, _, side = place.replace(":", "/").partition("@")
    return Path(side, name)


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many parts before it as make all different."""
    parts = [folder.resolve().parts for folder in folders]
    for n in range(1, max(len(part) for part in parts) + 1):
        names = ["/".join(part[-n:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    twice, _ = Counter(map(str, folders)).most_common(1)[0]
    raise UserError(f"tasks_dir: {twice} is named twice; give each folder once")


def _chosen(source: str, name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    wanted = not include or any(_matches(source, name, glob) for glob in include)
    return wanted and not any(_matches(source, name, glob) for glob in exclude)


def _matches(source: str, name: str, glob: str) -> bool:
    return fnmatch.fnmatchcase(name, glob) or fnmatch.fnmatchcase(f"{source}/{name}", glob)


MOST = 0.5  # share of the names that have a sibling, above which a series is meant
LARGEST, FEWEST = 8, 10  # members of a family, and families: others are numbered tasks, which names tell nothing about
_LEVELS = "very_easy|very_hard|easy|medium|moderate|normal|hard|simple|basic|intermediate|advanced|expert"
_SUFFIX = re.compile(rf"[-_. ](?:{_LEVELS}|v?\d{{1,6}})$", re.IGNORECASE)


def name_families(names: Sequence[str], pattern: str | None) -> dict[str, str]:
    """Return the family of each name that has one.

    `pattern`: its first group is the family; "" = names have none; None = the name without its level, version or
    number, where more than MOST of all names share that with another one, and at most LARGEST with each. Raises
    UserError for a wrong pattern.
    """
    if pattern == "":
        return {}
    if pattern is not None:
        compiled = _compiled(pattern)
        found = {name: match[1] for name in names if (match := compiled.search(name)) and match[1]}
        if not found:
            raise UserError(f"family={pattern}: matches none of {len(names)} tasks, such as {names[0]}")
        return found
    stems = {name: _stem(name) for name in names}
    members = Counter(stems.values())
    found = {name: stem for name, stem in stems.items() if members[stem] > 1}
    sizes = Counter(found.values())
    series = len(found) > MOST * len(names) and len(sizes) >= FEWEST and max(sizes.values()) <= LARGEST
    return found if series else {}


def _stem(name: str) -> str:
    while cut := _SUFFIX.search(name):
        name = name[: cut.start()]
    return name


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"family={pattern}: no regular expression: {error}") from None
    if not compiled.groups:
        raise UserError(f"family={pattern}: has no group; put what names the family in parentheses: ^(.+)_[a-z]+$")
    return compiled
