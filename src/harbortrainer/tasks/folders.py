"""Finds, checks and loads Harbor task directories, and reads and writes their quarantine list."""

import logging
import os
import tomllib
import warnings
from collections.abc import Collection, Iterable
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harbortrainer.durable import listed as files
from harbortrainer.durable.facts import fact
from harbortrainer.durable.listed import Listed, read_list, write_list
from harbortrainer.errors import UserError, one_line, some_of, wrong_field
from harbortrainer.harbor import hasten_task_files, is_plain
from harbortrainer.tasks.task import Task

QUARANTINE_FILE = "quarantine.txt"
_RECIPES = ("Dockerfile", "docker-compose.yaml", "singularity-compose.yaml")
_TABLES = ("metadata", "environment", "solution")  # of task.toml, that are read here; `find_fault` names a wrong one
_HEAD = "# Tasks that training leaves out: name, digest of what was checked, why. Made by: python -m src.tasks check\n"
FETCHED_BY = {  # data sets that a clone of this repository lacks
    "terminal-bench-2": "fetch it with scripts/get_terminal_bench.sh",
    "terminal-bench-2-1": "fetch it with scripts/get_terminal_bench.sh 2.1",
    "terminal-easy": "make it with python -m scripts.easy.make_tasks",
}
_UNREADABLE = {tomllib.TOMLDecodeError: "task.toml: ", UnicodeDecodeError: "task.toml or an instruction is not UTF-8: "}
_SHOWN = 5  # broken tasks whose faults are printed
_LEVELS = 3  # of folders below a folder without tasks that are searched for some
_log = logging.getLogger("harbortrainer")


_version = cache(version)  # it reads all that a package says of itself
_parsed = lru_cache(maxsize=1)(tomllib.loads)  # of one task, several things are asked one after another


def folder_of(task: Task) -> Path:
    """Return the directory of a task."""
    return Path(task.ref)


def task_paths(tasks_dir: str) -> list[Path]:
    """Return the task directories in a folder, by name. Raises UserError when there is no such folder."""
    folder = Path(tasks_dir)
    if not folder.is_dir():
        fix = FETCHED_BY.get(folder.name, "give a folder of Harbor task directories")
        raise UserError(f"tasks_dir: {tasks_dir} is not a folder; {fix}")
    return [path for name in sorted(os.listdir(folder)) if looks_like_task(path := folder / name)]


def load_tasks(tasks_dir: str, excluded: Collection[str] = ()) -> list[Task]:
    """Return tasks in `tasks_dir`, by name, without those in `excluded` and those that its quarantine.txt names.

    Raises UserError for a missing folder, no task in it, or a broken task.
    """
    found = [path for path in task_paths(tasks_dir) if path.name not in excluded]
    listed = _quarantined(Path(tasks_dir), found)
    paths = [path for path in found if path.name not in listed]
    broken = {path.name: fault for path in paths if (fault := find_fault(path))}
    if broken:
        named = some_of([f"{name}: {fault}" for name, fault in broken.items()], _SHOWN)
        fix = f"mend them or leave them out: tasks_exclude={','.join(broken)}"
        raise UserError(f"tasks_dir: broken tasks in {tasks_dir} ({named}); {fix}")
    real = Path(tasks_dir).resolve()
    tasks = [
        Task(path.name, path.resolve() if path.is_symlink() else real / path.name, digest(path), domain=category(path))
        for path in paths
    ]
    if not tasks and not excluded:
        if looks_like_task(Path(tasks_dir).expanduser()):
            raise UserError(
                f"tasks_dir={tasks_dir}: a task itself; give the folder that it is in, and tasks_include=NAME"
            )
        raise UserError(f"tasks_dir: {no_task_in(tasks_dir)}")
    return tasks


def no_task_in(folder: str) -> str:
    """Return what is wrong with a folder without tasks: folders below it are named where they have some."""
    below, former = _folders_below(Path(folder).expanduser())
    if below:
        named = ",".join(f"{folder.rstrip('/')}/{one}" for one in below)
        return f"no Harbor task in {folder} itself, but in folders of it; name these: {named}"
    if former:
        convert = f"convert them: harbor task migrate -i '{folder.rstrip('/')}/{former[0]}' -o NEW_FOLDER"
        return f"no Harbor task in {folder}, but tasks with task.yaml, the form before Harbor; {convert}"
    return f"no Harbor task in {folder}; each is a folder with task.toml and instruction.md"


def _folders_below(folder: Path) -> tuple[list[str], list[str]]:
    """Return the folders at most _LEVELS below `folder` that have tasks, and those that have tasks with task.yaml."""
    found: dict[str, None] = {}
    former: dict[str, None] = {}
    for place, folders, names in os.walk(folder):
        here = Path(place).relative_to(folder)
        task = looks_like_task(folder / here)
        if task or "task.yaml" in names:
            (found if task else former)[str(here.parent)] = None
        deeper = len(here.parts) <= _LEVELS and not task
        folders[:] = [name for name in sorted(folders) if deeper and not name.startswith(".")]
    return list(found), list(former)


def digest(path: Path) -> str:
    """Return SHA-256 over the names, modes and contents of a task's files."""
    return fact(path, "digest", lambda: files.digest(path))


def find_fault(path: Path) -> str | None:
    """Return why Harbor cannot run this task; None = it can."""
    return fact(path, f"fault {_version('harbor')}", lambda: _fault(path))


def _fault(path: Path) -> str | None:
    from harbor.models.task.task import Task as HarborTask  # half a second to import
    from pydantic import ValidationError
    from scantree import SymlinkRecursionError

    hasten_task_files()

    for needed in ("task.toml", "instruction.md"):
        if not (path / needed).is_file() and not (needed == "instruction.md" and (path / "steps").is_dir()):
            return f"no {needed}"
    try:
        task = HarborTask(path)
        if not is_plain(path):  # Harbor follows links, and a circle ends its trials
            with warnings.catch_warnings(action="ignore"):
                _ = task.checksum
    except ValidationError as error:
        return f"task.toml: {wrong_field(error)}"
    except (OSError, ValueError, RuntimeError, SymlinkRecursionError) as error:
        return _UNREADABLE.get(type(error), "") + one_line(error)
    if not task.config.environment.docker_image and not any(
        (path / "environment" / name).is_file() for name in _RECIPES
    ):
        return "no environment/Dockerfile, no docker-compose.yaml, and no docker_image in task.toml"
    if not task.has_steps and not task.instruction.strip():
        return "instruction.md is empty"
    return None


def read_settings(path: Path) -> dict[str, Any]:
    """Get the task.toml of a task directory, without those of _TABLES that are no tables; {} when it cannot be read."""
    try:
        found = _parsed((path / "task.toml").read_text())
    except (OSError, ValueError):
        return {}
    return {name: value for name, value in found.items() if name not in _TABLES or isinstance(value, dict)}


def category(path: Path) -> str:
    """Return metadata.category of a task; "" = none."""
    return fact(path, "category", lambda: str(read_settings(path).get("metadata", {}).get("category") or ""))


def metadata(path: Path) -> list[str]:
    """Return family, category or kind, and difficulty of a task, as its task.toml has them."""
    return fact(path, "metadata", lambda: _metadata(path))


def _metadata(path: Path) -> list[str]:
    found = read_settings(path).get("metadata", {})
    kind = found.get("category") or found.get("kind")
    return [str(value or "") for value in (found.get("family"), kind, found.get("difficulty"))]


def looks_like_task(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    return os.path.exists(f"{path}/task.toml") or os.path.exists(f"{path}/instruction.md")


def read_quarantine(folder: Path) -> dict[str, Listed]:
    """Return a folder's list by name; the text is the reason."""
    return {one.name: one for one in read_list(folder / QUARANTINE_FILE)}


def write_quarantine(folder: Path, bad: Iterable[Listed], good: Iterable[str]) -> int:
    """Add the `bad` tasks, drop the `good` ones. Returns how many are listed; without any, the file is removed."""
    kept = {name: one for name, one in read_quarantine(folder).items() if name not in set(good)}
    kept |= {one.name: one for one in bad}
    write_list(folder / QUARANTINE_FILE, _HEAD, list(kept.values()))
    return len(kept)


def _quarantined(folder: Path, found: list[Path]) -> set[str]:
    """Names of tasks to leave out, each logged. A task that was changed since it was found bad is kept."""
    listed = read_quarantine(folder)
    left_out: set[str] = set()
    for path in found:
        if (one := listed.get(path.name)) is None:
            continue
        if one.digest and one.digest != digest(path):
            _log.warning("task %s: %s names an earlier version of it; check it again", path.name, QUARANTINE_FILE)
            continue
        _log.warning("task %s is left out: %s: %s", path.name, QUARANTINE_FILE, one.text or "no reason given")
        left_out.add(path.name)
    return left_out
