"""The tasks of an evaluation: in sets, one a folder, and in domains, as their task.toml says."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from src.errors import UserError
from src.rollout.task import Task, load_tasks


@dataclass(frozen=True, slots=True)
class EvalTask:
    """`set`: name of the folder that it came from; `domain`: metadata.category of its task.toml, else the set."""

    task: Task
    set: str
    domain: str


def load_sets(tasks_dir: str, allow_broken: bool) -> list[EvalTask]:
    """Tasks of all folders in `a,b`; one whose name is in several sets is called SET/NAME. Raises UserError."""
    folders = [folder.strip() for folder in tasks_dir.split(",") if folder.strip()]
    names = _set_names([Path(folder).expanduser() for folder in folders])
    found = [
        EvalTask(task, name, _domain(task.path) or name)
        for folder, name in zip(folders, names, strict=True)
        for task in load_tasks(folder, allow_broken)
    ]
    if not found:
        raise UserError(f"tasks_dir={tasks_dir}: names no folder; give a folder of Harbor task directories")
    counts = Counter(one.task.name for one in found)
    return [
        replace(one, task=replace(one.task, name=f"{one.set}/{one.task.name}")) if counts[one.task.name] > 1 else one
        for one in found
    ]


def require_same(saved: Sequence[dict[str, Any]], tasks: Sequence[EvalTask], out: str) -> None:
    """A continued evaluation has the tasks that it was started with. Raises UserError."""
    before = {task["name"]: task["digest"] for task in saved}
    now = {one.task.name: one.task.digest for one in tasks}
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed or list(before) != list(now):
        raise UserError(
            f"tasks_dir: {', '.join(changed[:3]) or 'the order of tasks'} changed since out={out} was started; put the "
            "tasks back or choose another out"
        )


def _domain(task: Path) -> str:
    try:
        category = tomllib.loads((task / "task.toml").read_text()).get("metadata", {}).get("category")
    except (OSError, ValueError):  # a task of old keys that Harbor reads all the same
        return ""
    return str(category or "")


def _set_names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, and as many before it as tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for n in range(1, max((len(part) for part in parts), default=1) + 1):
        names = ["/".join(part[-n:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"tasks_dir: {folders[0]} is named twice; give each folder once")
