"""Whether a task's environment holds anything of its own, or is only a plain image with packages."""

import re
from pathlib import Path

_SETS = """FROM WORKDIR ENV ARG USER LABEL EXPOSE SHELL CMD ENTRYPOINT HEALTHCHECK VOLUME STOPSIGNAL MAINTAINER"""
_PREPARES = """apt apt-get apk dnf yum pip pip3 uv npm rm mkdir useradd adduser groupadd addgroup usermod chown chmod
chsh set cd true export update-alternatives locale-gen ldconfig dpkg-reconfigure dpkg"""
_SETTINGS = frozenset(_SETS.split())  # instructions of a Dockerfile that bring nothing of a task into the image
_PREPARATIONS = frozenset(_PREPARES.split())  # nor do commands that begin so
_RECIPES = ("Dockerfile", ".dockerignore")
_PLAIN_IMAGE = re.compile(r"(?:harbortrainer/)?[\w.-]+(?::[\w.-]+)?(?:@sha256:\w+)?")  # no owner: an official image


def holds_data(environment: Path, docker_image: str | None) -> bool:
    """Whether two tasks with equal environments share more than an image with packages installed.

    True for files beside the Dockerfile, for COPY and ADD, for a RUN that does more than install packages and make
    users and folders, and for a prebuilt image that is not an official one (`owner/name`).
    """
    if docker_image and not _PLAIN_IMAGE.fullmatch(docker_image):
        return True
    if not environment.is_dir():
        return False
    if any(file.is_file() and file.name not in _RECIPES for file in environment.rglob("*")):
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
