"""Digests by which equal tasks and tasks of one family are found, even when copied, renamed or reworded."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from harbortrainer.tasks.task import Task, read_settings

SAME_FILES, SAME_TEXT = "the same files", "the same but for spacing, case or task.toml"
SAME_INSTRUCTION, SAME_TEMPLATE = "the same instruction", "the same instruction template"
SAME_CHECK, SAME_ENVIRONMENT = "the same test in the same environment", "the same environment"
SAME_FAMILY = "the same metadata.family"
DUPLICATES = (SAME_FILES, SAME_TEXT)
REASONS = (*DUPLICATES, SAME_INSTRUCTION, SAME_TEMPLATE, SAME_CHECK, SAME_ENVIRONMENT, SAME_FAMILY)  # strongest first
FEWEST_WORDS = 3  # fixed words of a template: with fewer ("run <path>") it fits unrelated tasks
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
_SHELL = """a all and app awk bash bin cat chmod cmp count cp cut date diff directory do echo else exit file files find
fi folder for from grep gzip head if in is it json lines list ls make mkdir mv name not number of or out output path
printf python read result reward rm run script sed sh size sort tail tar test text that the then to touch tr true
uniq wc while with word words zip"""
_PLACE = """a all and are as at current directory do does everything file files folder from happens here in inside is it
its now of on please place should stay task the there this to under will work working you your"""
NUMBER_WORDS = frozenset(_NUMBERS.split())
SHELL_WORDS = frozenset(_SHELL.split())  # common in instructions and in tests: not names that the task gives
# A sentence of only these says where the work is done, not what it is.
PLACE_WORDS = frozenset(_PLACE.split())
_QUOTED = re.compile(
    r"```.*?```|`[^`\n]*`|\"[^\"\n]*\"|\u201c[^\u201d]*\u201d|\u2018[^\u2019]*\u2019|(?<!\w)'[^'\n]*'(?!\w)", re.DOTALL
)
_NAMES = re.compile(
    r"\b\w+://\S+"  # addresses
    r"|[~.]?/?[\w.@+-]*/[\w./@+*-]*"  # paths
    r"|\b[\w-]+(?:\.[A-Za-z]\w*)+\b"  # names with an extension
    r"|\b\w*[A-Za-z]\w*[_\d]\w*\b|\b\w*_\w+\b"  # identifiers with digits or underscores
    r"|\b[a-z]+[A-Z]\w*\b"  # camelCase
    r"|(?<![\w.])[-+]?\d[\d.,:]*\w*"  # numbers
)
_WORD = re.compile(r"<\w>|[^\W_]+(?:'[a-z]+)?")
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n")
_SETS = """FROM WORKDIR ENV ARG USER LABEL EXPOSE SHELL CMD ENTRYPOINT HEALTHCHECK VOLUME STOPSIGNAL MAINTAINER"""
_PREPARES = """apt apt-get apk dnf yum pip pip3 uv npm rm mkdir useradd adduser groupadd addgroup usermod chown chmod
chsh set cd true export update-alternatives locale-gen ldconfig dpkg-reconfigure dpkg"""
_SETTINGS = frozenset(_SETS.split())  # instructions of a Dockerfile that add no data of the task
_PREPARATIONS = frozenset(_PREPARES.split())  # first words of commands that add none
_RECIPES = ("Dockerfile", ".dockerignore")
_PLAIN_IMAGE = re.compile(r"(?:harbortrainer/)?[\w.-]+(?::[\w.-]+)?(?:@sha256:\w+)?")  # official: without an owner


@dataclass(frozen=True, slots=True)
class Identity:
    """`keys`: (reason, digest); two tasks that share one are related for that reason.

    `content`: digest of all files. `family`: declared in task.toml; "" = none.
    """

    name: str
    content: str
    keys: tuple[tuple[str, str], ...]
    family: str


def identify(task: Task) -> Identity:
    """The identity of a task by its files. A task with unreadable task.toml declares no family."""
    path = task.path
    instruction = "\n".join(_text(file) for file in _files(path, ("instruction.md",)))
    code = "\n".join(_text(file) for file in _files(path, ("tests", "solution")))
    settings = read_settings(path)
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


def _files(path: Path, tops: tuple[str, ...]) -> Iterator[Path]:
    """Files of these names, and below folders of these names, in the task and in each of its steps; in order."""
    for root in (path, *sorted((path / "steps").glob("*"))):
        for top in tops:
            if (root / top).is_file():
                yield root / top
            elif (root / top).is_dir():
                yield from sorted(file for file in (root / top).rglob("*") if file.is_file())


def _text(file: Path) -> str:
    return file.read_bytes().decode(errors="replace")


def _normal(path: Path, tops: tuple[str, ...]) -> tuple[str, ...]:
    """Names and contents of files; of text, its `plain_text`."""
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


def plain_text(text: str) -> str:
    """The text in lower case, with single spaces and normalized characters."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def template(instruction: str, code_words: Set[str] = frozenset()) -> str | None:
    """Words of the instruction, separated by one space, with quoted text, paths, names and numbers as `<s>`, `<p>`.

    `code_words`: words of the task's test and solution. A bare word of the instruction among them is a name that the
    task gives ("a directory named <p>"), unless it begins a sentence or is one of SHELL_WORDS. Sentences of PLACE_WORDS
    are left out. None when fewer than FEWEST_WORDS words are left.
    """
    text = unicodedata.normalize("NFKC", instruction)
    text = _NAMES.sub(" <p> ", _QUOTED.sub(" <s> ", text))
    words: list[str] = []
    for sentence in _SENTENCE.split(text):
        found = _WORD.findall(sentence.lower())
        if all(word.startswith("<") or word in PLACE_WORDS for word in found):
            continue
        for position, word in enumerate(found):
            named = word in NUMBER_WORDS or (position > 0 and word in code_words and word not in SHELL_WORDS)
            words.append("<p>" if named else word)
    fixed = sum(not word.startswith("<") for word in words)
    return " ".join(words) if fixed >= FEWEST_WORDS else None


def code_words(code: str) -> frozenset[str]:
    """Words of shell or Python code in lower case, without comments."""
    lines = (line for line in code.splitlines() if not line.lstrip().startswith("#"))
    return frozenset(re.findall(r"[^\W_]+", "\n".join(lines).lower()))


def holds_data(environment: Path, docker_image: str | None) -> bool:
    """Whether an environment holds data of the task, more than an image with packages installed.

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
