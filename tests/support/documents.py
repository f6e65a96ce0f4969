"""What the Markdown pages say that can be held against the repository: commands, links, paths, settings."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FOLDERS = ("docs/*.md", "datasets/README.md", "datasets/*/README.md", "models/*/README.md")
_FIRST = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md", "bench/RESULTS.md", "tests/README.md")
PAGES = [*map(Path, _FIRST), *sorted(page for folder in _FOLDERS for page in Path().glob(folder))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_HEREDOC = re.compile(r"(?<=<<'END'\n).*?^END$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:[A-Z_]+=\S* )*(?:python3? |harbortrainer |\./|scripts/|\.venv/bin/)")
_FIELD = re.compile(r"^-{0,2}([a-zA-Z_]+)(?:\.[\w-]+)?=(?!=)")
_PATH = re.compile(r"^(?:src|scripts|bench|tests|docs|server|datasets|models)/[\w./-]+$")


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of a page, and where it stands."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"

    @property
    def words(self) -> list[str]:
        """Of a command, without the variables set before it and what is behind a comment or a pipe."""
        words = shlex.split(re.split(r"\s[|&;]+\s", self.text)[0], comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        return words


def commands(page: Path) -> Iterator[Said]:
    """Lines of ```bash blocks, indented lines and inline code that call something of this repository."""
    text = page.read_text()
    for fence in _FENCE.finditer(text):
        if fence[1] in ("bash", "sh", "shell"):
            said = _HEREDOC.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), fence[2])  # of the same length
            for line in re.finditer(r"(?:.*\\\n)*.+", said):  # with those that a backslash continues
                command = line[0].replace("\\\n", " ").strip()
                if command and not command.startswith("#"):
                    yield Said(page, _line(text, fence.start(2) + line.start()), command)
    prose = _without_fences(text)
    for found in re.finditer(r"^ {4}(\S(?:.*\\\n)*.*)$", prose, re.MULTILINE):
        if _COMMAND.match(found[1]):
            yield Said(page, _line(text, found.start()), found[1].replace("\\\n", " "))
    for said in inline(page):
        if _COMMAND.match(said.text) and (" " in said.text or said.text.endswith(".sh")):
            yield said


def inline(page: Path) -> Iterator[Said]:
    """Inline code, its line breaks as spaces."""
    text = page.read_text()
    for found in _INLINE.finditer(_without_fences(text)):
        yield Said(page, _line(text, found.start()), " ".join(found[1].split()).replace("\\|", "|"))


def links(page: Path) -> Iterator[Said]:
    """Targets of links and pictures that are files of the repository; anchors cut off."""
    text = page.read_text()
    for found in re.finditer(r"\]\(([^)\s]+)\)", _without_fences(text)):
        target = found[1].split("#")[0]
        if target and not re.match(r"\w+:", target):
            yield Said(page, _line(text, found.start()), target)


def anchors(page: Path) -> Iterator[Said]:
    """Targets of links to a heading of a page, `page.md#heading`; of the page itself for `#heading`."""
    text = page.read_text()
    for found in re.finditer(r"\]\(([^)\s:]*#[^)\s]+)\)", _without_fences(text)):
        target = found[1] if not found[1].startswith("#") else f"{page.name}{found[1]}"
        yield Said(page, _line(text, found.start()), target)


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", _without_fences(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in found}


def paths(page: Path) -> Iterator[Said]:
    """Inline code that is a path of the repository."""
    return (said for said in inline(page) if _PATH.match(said.text) and "..." not in said.text)


def settings(page: Path) -> Iterator[Said]:
    """Inline code that is one `name=value`."""
    return (said for said in inline(page) if _FIELD.match(said.text) and " " not in said.text)


def field_names(words: list[str]) -> list[str]:
    """Names of the `name=value` among a command's words."""
    return [found[1] for word in words if (found := _FIELD.match(word))]


def _without_fences(text: str) -> str:
    """The text, of the same length."""
    return _FENCE.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), text)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
