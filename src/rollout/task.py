"""Harbor task directories: found, checked, and divided into training and held-out tasks."""

import difflib
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from src.errors import UserError

log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class Task:
    """One Harbor task. `name` is its directory's; `digest` changes with any file in it."""

    name: str
    path: Path
    digest: str


def load_tasks(tasks_dir: str, allow_broken: bool) -> list[Task]:
    """Tasks in `tasks_dir`, by name. Broken ones are named in a warning, or refused unless `allow_broken`.

    Raises UserError: no such folder, no task in it, a broken task.
    """
    folder = Path(tasks_dir)
    if not folder.is_dir():
        raise UserError(f"tasks_dir: {tasks_dir} is not a folder; give a folder of Harbor task directories")
    paths = [path for path in sorted(folder.iterdir()) if _looks_like_task(path)]
    broken = {path.name: fault for path in paths if (fault := find_fault(path))}
    if broken and not allow_broken:
        named = "; ".join(f"{name}: {fault}" for name, fault in broken.items())
        raise UserError(f"tasks_dir: broken tasks in {tasks_dir} ({named}); mend them or set allow_broken_tasks=true")
    for name, fault in broken.items():
        log.warning("task %s is left out: %s", name, fault)
    tasks = [Task(path.name, path.resolve(), digest(path)) for path in paths if path.name not in broken]
    if not tasks:
        raise UserError(f"tasks_dir: no Harbor task in {tasks_dir}; each is a folder with task.toml and instruction.md")
    return tasks


def split_tasks(
    tasks: Sequence[Task], eval_split: float, eval_tasks: Sequence[str], seed: int
) -> tuple[list[Task], list[Task]]:
    """Training tasks and held-out tasks, each in order of name; `eval_tasks` goes before `eval_split`.

    Raises UserError: a name that is not there, nothing left to train on.
    """
    held_out = set(eval_tasks) if eval_tasks else _draw(tasks, eval_split, seed)
    names = [task.name for task in tasks]
    for name in sorted(held_out.difference(names)):
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:3]
        raise UserError(f"eval_tasks: no task named {name!r}; near: {', '.join(near)}")
    train = [task for task in tasks if task.name not in held_out]
    if not train:
        field = "eval_tasks" if eval_tasks else f"eval_split={eval_split:g}"
        raise UserError(f"{field}: all {len(tasks)} tasks are held out, none is left to train on; hold out fewer")
    return train, [task for task in tasks if task.name in held_out]


def find_fault(path: Path) -> str | None:
    """Why Harbor cannot run this task; None when it can."""
    from harbor.models.task.task import Task as HarborTask  # half a second to import

    for needed in ("task.toml", "instruction.md"):
        if not (path / needed).is_file() and not (needed == "instruction.md" and (path / "steps").is_dir()):
            return f"no {needed}"
    try:
        task = HarborTask(path)
    except (OSError, ValueError, RuntimeError) as error:
        return " ".join(str(error).split())[:200]
    if not task.config.environment.docker_image and not _has_definition(path / "environment"):
        return "no environment/Dockerfile, no docker-compose.yaml, and no docker_image in task.toml"
    if not task.has_steps and not task.instruction.strip():
        return "instruction.md is empty"
    return None


def digest(path: Path) -> str:
    """SHA-256 over the names, modes and contents of a directory's files."""
    total = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        executable = bool(file.stat().st_mode & 0o100)
        head = f"{file.relative_to(path).as_posix()}\0{int(executable)}\0{file.stat().st_size}\0"
        total.update(head.encode("utf-8", "surrogateescape"))
        total.update(file.read_bytes())
    return total.hexdigest()


def _looks_like_task(path: Path) -> bool:
    visible_folder = path.is_dir() and not path.name.startswith(".")
    return visible_folder and any((path / name).exists() for name in ("task.toml", "instruction.md"))


def _has_definition(environment: Path) -> bool:
    names = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml")
    return any((environment / name).is_file() for name in names)


def _draw(tasks: Sequence[Task], share: float, seed: int) -> set[str]:
    """Names drawn by seed; when a share above 0 is asked for at least one, and all only of a single task."""
    count = max(1, min(round(share * len(tasks)), len(tasks) - 1)) if share > 0 else 0
    order = np.random.default_rng([seed, 7]).permutation(len(tasks))
    return {tasks[int(index)].name for index in order[:count]}
