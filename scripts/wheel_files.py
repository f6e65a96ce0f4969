"""A wheel brings the repository's scripts, server, models, data sets and pages to PREFIX/share/harbortrainer.

Read by hatchling (pyproject.toml). `harbortrainer quickstart`, `setup`, `server start` ... run them from there.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, override

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("scripts", "server", "models", "datasets/quickstart", "datasets/terminal-basics", "docs", "examples")
FILES = ("*.sh", "src/*.py", "requirements*", "datasets/*", ".env.example", "README.md")
FILES += ("src/harbortrainer/policy/quick_import.py",)  # of server/quick_import.py
NOT_SHIPPED = {"__pycache__", ".venv", ".state"}


class CustomBuildHook(BuildHookInterface[Any]):
    @override
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            root = Path(self.root)
            build_data["shared_data"] |= {file: f"share/harbortrainer/{file}" for file in shipped(root)}


def shipped(root: Path) -> Iterator[str]:
    """Paths below `root` of the files that the wheel brings beside the package."""
    for pattern in FILES:
        yield from (str(file.relative_to(root)) for file in sorted(root.glob(pattern)) if file.is_file())
    for name in FOLDERS:
        for folder, folders, files in os.walk(root / name):
            folders[:] = sorted(set(folders) - NOT_SHIPPED)
            yield from (
                str(Path(folder, file).relative_to(root)) for file in sorted(files) if not file.endswith(".pyc")
            )
