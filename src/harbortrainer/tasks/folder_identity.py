"""The identity of a task directory: by its instruction, tests, solution and environment."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from harbortrainer.durable.facts import fact
from harbortrainer.durable.listed import names_below
from harbortrainer.tasks.folders import folder_of, read_settings
from harbortrainer.tasks.identity import (
    SAME_CHECK,
    SAME_ENVIRONMENT,
    SAME_FAMILY,
    SAME_FILES,
    SAME_INSTRUCTION,
    SAME_TEMPLATE,
    SAME_TEXT,
    Identity,
    code_words,
    digest_of,
    plain_text,
    template,
)
from harbortrainer.tasks.task import Task

_SETS = """FROM WORKDIR ENV ARG USER LABEL EXPOSE SHELL CMD ENTRYPOINT HEALTHCHECK VOLUME STOPSIGNAL MAINTAINER"""
_PREPARES = """apt apt-get apk dnf yum pip pip3 uv npm rm mkdir useradd adduser groupadd addgroup usermod chown chmod
chsh set cd true export update-alternatives locale-gen ldconfig dpkg-reconfigure dpkg"""
_SETTINGS = frozenset(_SETS.split())  # instructions of a Dockerfile that add no data of the task
_PREPARATIONS = frozenset(_PREPARES.split())  # first words of commands that add none
_TOPS = ("instruction.md", "environment", "tests", "solution")  # of files that identify a task
_RECIPES = ("Dockerfile", ".dockerignore")
_PLAIN_IMAGE = re.compile(r"(?:harbortrainer/)?[\w.-]+(?::[\w.-]+)?(?:@sha256:\w+)?")  # official: without an owner


def identify_folder(task: Task) -> Identity:
    """Return the identity of a task by its files. A task with unreadable task.toml declares no family."""
    path = folder_of(task)
    family, keys = fact(path, f"identity {task.digest}", lambda: _found(path, task.digest))
    return Identity(task.name, task.digest, tuple((reason, key) for reason, key in keys), family)


@lru_cache(maxsize=8192)  # of copies
def _by_content(_digest: str) -> list[Any]:
    return []


def _found(path: Path, digest: str) -> list[Any]:
    """Declared family and keys."""
    known = _by_content(digest)
    if not known:
        known[:] = _read(path, digest)
    return known


def _read(path: Path, digest: str) -> list[Any]:
    names = {top: list(_files(path, top)) for top in _TOPS}
    contents = {name: (path / name).read_bytes() for of_top in names.values() for name in of_top}
    instruction, code = (
        "\n".join(contents[name].decode(errors="replace") for name in of_tops)
        for of_tops in (names["instruction.md"], [*names["tests"], *names["solution"]])
    )
    settings = read_settings(path)
    image = str(settings.get("environment", {}).get("docker_image") or "")
    normal = {name: _normal(content) for name, content in contents.items()}
    environment, verifier = _joined(normal, names["environment"], image), _joined(normal, names["tests"])
    in_order = _files(path, *_TOPS) if (path / "steps").is_dir() else contents
    found = {
        SAME_FILES: digest,
        SAME_TEXT: _joined(normal, in_order, image),
        SAME_INSTRUCTION: plain_text(instruction),
        SAME_TEMPLATE: template(instruction),
        SAME_CHECK: f"{verifier} {environment}",
        SAME_ENVIRONMENT: environment if holds_data(path / "environment", image or None) else None,
        SAME_FAMILY: str(settings.get("metadata", {}).get("family") or ""),
    }
    keys = [(reason, digest_of((key,))) for reason, key in found.items() if key]
    if named := template(instruction, code_words(code)):
        keys.append((SAME_TEMPLATE, digest_of((named,))))
    return [found[SAME_FAMILY] or "", list(dict.fromkeys(keys))]


def _files(path: Path, *tops: str) -> Iterator[str]:
    """Files of these names, and below folders of these names, in the task and in each of its steps; in order."""
    for root in ("", *(f"steps/{step.name}/" for step in sorted((path / "steps").glob("*")))):
        for top in tops:
            if os.path.isfile(where := f"{path}/{root}{top}"):
                yield f"{root}{top}"
            else:
                yield from (f"{root}{top}/{name}" for name in names_below(where))


def _normal(content: bytes) -> str:
    """Of text, its `plain_text`; else a digest."""
    return hashlib.sha256(content).hexdigest() if b"\0" in content else plain_text(content.decode(errors="replace"))


def _joined(texts: Mapping[str, str], names: Iterable[str], *more: str) -> str:
    return digest_of([*(part for name in names for part in (name, texts[name])), *more])


def holds_data(environment: Path, docker_image: str | None) -> bool:
    """Return whether an environment holds data of the task, more than an image with packages installed.

    True for files beside the Dockerfile, for COPY and ADD, for a RUN that does more than install packages and make
    users and folders, and for a prebuilt image that is not an official one (`owner/name`).
    """
    if docker_image and not _PLAIN_IMAGE.fullmatch(docker_image):
        return True
    if any(os.path.basename(name) not in _RECIPES for name in names_below(environment)):
        return True
    dockerfile = environment / "Dockerfile"
    return dockerfile.is_file() and any(map(_brings, _instructions(dockerfile.read_text(errors="replace"))))


def _instructions(dockerfile: str) -> list[str]:
    lines = (line for line in dockerfile.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return re.sub(r"\\\s*\n", " ", "\n".join(lines)).splitlines()


def _brings(instruction: str) -> bool:
    name, _, rest = instruction.strip().partition(" ")
    if name.upper() in _SETTINGS:
        return False
    if name.upper() != "RUN" or "<<" in rest:
        return True
    commands = (part.split() for part in re.split(r"&&|\|\||;|\|", re.sub(r"--mount=\S+", "", rest)))
    return any(words and (words[0] not in _PREPARATIONS or ">" in words) for words in commands)
