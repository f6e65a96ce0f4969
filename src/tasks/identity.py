"""What makes two tasks the same task, or tasks of one family: digests that survive copying, renaming and rewording."""

import hashlib
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from src.rollout.task import Task
from src.tasks.environment_digest import holds_data
from src.tasks.template import code_words, plain_text, template

SAME_FILES, SAME_TEXT = "the same files", "the same but for spacing, case or task.toml"
SAME_INSTRUCTION, SAME_TEMPLATE = "the same instruction", "the same instruction template"
SAME_CHECK, SAME_ENVIRONMENT = "the same test in the same environment", "the same environment"
SAME_FAMILY = "the same metadata.family"
DUPLICATES = (SAME_FILES, SAME_TEXT)
REASONS = (*DUPLICATES, SAME_INSTRUCTION, SAME_TEMPLATE, SAME_CHECK, SAME_ENVIRONMENT, SAME_FAMILY)  # strongest first


@dataclass(frozen=True, slots=True)
class Identity:
    """`keys`: (reason, digest); two tasks with one in common belong together, for that reason. `family`: as declared
    in task.toml, "" = not."""

    name: str
    content: str
    keys: tuple[tuple[str, str], ...]
    family: str


def identify(task: Task) -> Identity:
    """Read a task's files. The family of a task with unreadable task.toml is not declared."""
    path = task.path
    instruction = "\n".join(_text(file) for file in _files(path, ("instruction.md",)))
    code = "\n".join(_text(file) for file in _files(path, ("tests", "solution")))
    settings = _settings(path)
    image = str(settings.get("environment", {}).get("docker_image") or "")
    environment = _digest((*_normal(path, ("environment",)), image))
    verifier = _digest(_normal(path, ("tests",)))
    parts = _normal(path, ("instruction.md", "environment", "tests", "solution"))
    found = {
        SAME_FILES: task.digest,
        SAME_TEXT: _digest((*parts, image)),
        SAME_INSTRUCTION: plain_text(instruction),
        SAME_TEMPLATE: template(instruction),
        SAME_CHECK: f"{verifier} {environment}",
        SAME_ENVIRONMENT: environment if holds_data(path / "environment", image or None) else None,
        SAME_FAMILY: str(settings.get("metadata", {}).get("family") or ""),
    }
    keys = [(reason, _digest((key,))) for reason, key in found.items() if key]
    if named := template(instruction, code_words(code)):
        keys.append((SAME_TEMPLATE, _digest((named,))))
    return Identity(task.name, task.digest, tuple(dict.fromkeys(keys)), found[SAME_FAMILY] or "")


def _settings(path: Path) -> dict:
    try:
        return tomllib.loads((path / "task.toml").read_text())
    except (OSError, ValueError):
        return {}


def _files(path: Path, tops: tuple[str, ...]) -> Iterator[Path]:
    """Files of these names or below folders of these names, in the task and in each of its steps; in order."""
    for root in (path, *sorted((path / "steps").glob("*"))):
        for top in tops:
            if (root / top).is_file():
                yield root / top
            elif (root / top).is_dir():
                yield from sorted(file for file in (root / top).rglob("*") if file.is_file())


def _text(file: Path) -> str:
    return file.read_bytes().decode(errors="replace")


def _normal(path: Path, tops: tuple[str, ...]) -> tuple[str, ...]:
    """Names and contents of files, spacing and case of text made equal."""
    parts: list[str] = []
    for file in _files(path, tops):
        content = file.read_bytes()
        text = hashlib.sha256(content).hexdigest() if b"\0" in content else plain_text(content.decode(errors="replace"))
        parts += [file.relative_to(path).as_posix(), text]
    return tuple(parts)


def _digest(parts: Iterable[str]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return total.hexdigest()
