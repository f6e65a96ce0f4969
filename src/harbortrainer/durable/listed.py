"""Lists beside task folders, which people read and share: each line is `NAME DIGEST TEXT`, # begins a comment line."""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from harbortrainer.durable.files import replace_text

_ODD = re.compile(r"[\s#%\0-\x1f\x7f\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class Listed:
    """What a list has of a task. `digest`: of the task's content; "" = of any."""

    name: str
    digest: str
    text: str


def read_list(file: Path) -> list[Listed]:
    """Return the lines of a list; [] = there is no such file. DIGEST may be `-`; NAME is quoted."""
    if not file.is_file():
        return []
    lines = [
        line for line in file.read_text(errors="replace").splitlines() if line.strip() and not line.startswith("#")
    ]
    parts = ((*line.split(maxsplit=2), "-", "")[:3] for line in lines)
    return [Listed(unquoted(name), content.removeprefix("-"), text.rstrip()) for name, content, text in parts]


def write_list(file: Path, head: str, listed: Sequence[Listed]) -> None:
    """Replace a list, sorted by name; without lines the file is removed. `head`: its comment. Raises DiskFault."""
    if not listed:
        file.unlink(missing_ok=True)
        return
    lines = [
        f"{quoted(one.name)} {one.digest or '-'} {' '.join(one.text.split())}\n"
        for one in sorted(listed, key=lambda one: one.name)
    ]
    replace_text(file, head + "".join(lines))


def quoted(text: str) -> str:
    """Return the text with white space, #, %, control characters and undecodable bytes percent-encoded."""
    return _ODD.sub(lambda odd: quote(odd[0], errors="surrogateescape"), text)


def unquoted(text: str) -> str:
    return unquote(text, errors="surrogateescape")


def digest(folder: Path) -> str:
    """Return SHA-256 over the names, modes and contents of a folder's files."""
    total = hashlib.sha256()
    for name in names_below(folder):
        file = f"{folder}/{name}"
        found = os.stat(file)
        head = f"{name}\0{int(bool(found.st_mode & 0o100))}\0{found.st_size}\0"
        total.update(head.encode("utf-8", "surrogateescape"))
        with open(file, "rb") as opened:
            total.update(opened.read())
    return total.hexdigest()


def names_below(folder: Path | str) -> list[str]:
    """Return relative paths of the files, and links to files, in a folder and in those below; in the order of paths."""
    below = (f"{at}/{name}" for at, _, names in os.walk(folder) for name in names)
    found = (path[len(str(folder)) + 1 :] for path in below if os.path.isfile(path))
    return sorted(found, key=lambda name: name.split("/"))
