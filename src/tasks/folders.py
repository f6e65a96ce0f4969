"""Folders that a user names -> task directories."""

from collections.abc import Sequence
from pathlib import Path

from src.errors import UserError
from src.rollout.task import looks_like_task


def task_folders(dirs: Sequence[str]) -> list[Path]:
    """Each DIR is a folder of tasks or a task itself. Raises UserError: not there, or no task in it."""
    found: dict[Path, None] = {}
    for given in (part for name in dirs for part in name.split(",") if part):
        folder = Path(given).expanduser()
        if not folder.is_dir():
            raise UserError(f"{given}: no such folder; give a folder of Harbor task directories, or one task")
        inside = [folder] if looks_like_task(folder) else [p for p in sorted(folder.iterdir()) if looks_like_task(p)]
        if not inside:
            raise UserError(f"{given}: no Harbor task in it; each is a folder with task.toml and instruction.md")
        found |= dict.fromkeys(path.resolve() for path in inside)
    return list(found)
