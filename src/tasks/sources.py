"""Where a run's tasks come from: folders, git repositories, Harbor's registry; mixed, chosen by globs, weighted."""

import fnmatch
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from src.caches import cache_folder
from src.errors import UserError
from src.rollout.task import Task, load_tasks, task_paths
from src.tasks.fetch import check_digests, fetch_dataset, fetch_git

SOURCES_FILE = "sources.json"  # in a run directory


@dataclass(frozen=True, slots=True)
class Source:
    """`given`: as the user wrote it. `name`: of its folder, with more of the path where names are equal. `version`: a
    commit, or NAME@VERSION; "" = a folder of the user's."""

    given: str
    name: str
    path: str
    version: str


def find_sources(tasks_dir: str) -> list[Source]:
    """`a,b`: folders, `git+URL[@REV][#FOLDER]`, `NAME@VERSION`; fetched where need be. Raises UserError."""
    given = [part.strip() for part in tasks_dir.split(",") if part.strip()]
    if not given:
        raise UserError(f"tasks_dir={tasks_dir}: names no folder; give a folder of Harbor task directories")
    found = [_find(one) for one in given]
    names = _names([Path(path) for path, _ in found])
    return [Source(one, name, path, version) for one, name, (path, version) in zip(given, names, found, strict=True)]


def load_sources(sources: Sequence[Source], include: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[Task]:
    """Tasks of all sources that match a glob of `include` (none given = all) and none of `exclude`.

    A glob is matched with NAME and with SOURCE/NAME. A name that is in several sources becomes SOURCE/NAME. Raises
    UserError: a broken folder, a glob that matches nothing, nothing left.
    """
    names = {source: [path.name for path in task_paths(source.path)] for source in sources}
    found = [(source.name, name) for source in sources for name in names[source]]
    for field, globs in (("tasks_include", include), ("tasks_exclude", exclude)):
        for glob in globs:
            if not any(_matches(source, name, glob) for source, name in found):
                such = f", such as {found[0][1]}" if found else ""
                raise UserError(f"{field}={glob}: matches none of {len(found)} tasks{such}")
    chosen: list[Task] = []
    for source in sources:
        excluded = [name for name in names[source] if not _chosen(source.name, name, include, exclude)]
        for task in load_tasks(source.path, excluded):
            chosen.append(replace(task, source=source.name, domain=_domain(task.path) or source.name))
    if not chosen:
        raise UserError(f"tasks_exclude={','.join(exclude)}: leaves no task of {len(found)}")
    counts = Counter(task.name for task in chosen)
    return [replace(t, name=f"{t.source}/{t.name}") if counts[t.name] > 1 else t for t in chosen]


def check_weights(weights: Mapping[str, Any], sources: Sequence[Source]) -> dict[str, float]:
    """By source name. Raises UserError: no such source, no number above 0."""
    names = [source.name for source in sources]
    for name, weight in weights.items():
        if name not in names:
            raise UserError(f"task_weights.{name}: no such source; one of {', '.join(names)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            raise UserError(f"task_weights.{name}={weight}: must be a number above 0; leave tasks out by tasks_exclude")
    return {name: float(weight) for name, weight in weights.items()}


def sources_record(sources: Sequence[Source], weights: Mapping[str, float]) -> list[dict[str, Any]]:
    """For the run's directory. Digests of the tasks are in its split.json."""
    return [asdict(source) | {"weight": weights.get(source.name, 1.0)} for source in sources]


def _find(given: str) -> tuple[str, str]:
    folder = Path(given).expanduser()
    cache = cache_folder("sources")
    if folder.is_dir():
        check_digests(folder)
        return given, ""
    if given.startswith("git+"):
        path, commit = fetch_git(given, cache)
        return str(path), commit
    name, at, version = given.partition("@")
    if not at or "/" in given or not name or not version:
        return given, ""  # told as a missing folder
    path = cache / "registry" / given
    if path.is_dir():
        check_digests(path)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        fetch_dataset(given, None, path)
    return str(path), given


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, and as many before it as tell them apart."""
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


def _domain(task: Path) -> str:
    """metadata.category of its task.toml."""
    try:
        return str(tomllib.loads((task / "task.toml").read_text()).get("metadata", {}).get("category") or "")
    except (OSError, ValueError):  # old keys that Harbor reads all the same
        return ""
