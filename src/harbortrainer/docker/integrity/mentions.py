"""Words in what tells verification what to do: a file counts, too, that it does not open but may ask for by its name.

No event of every kernel tells of such questions (whether a file exists, how large or old it is).
"""

import itertools
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

from harbortrainer.docker.integrity.accounts import LISTS
from harbortrainer.docker.integrity.asked import is_program
from harbortrainer.docker.integrity.image_files import way
from harbortrainer.docker.integrity.watch import Seen

_MOST_FILES, _MOST_BYTES = 256, 256 * 1024  # more are libraries, data and programs for a processor
_WORD = re.compile(rb"[\w.@+-]*\w")
_TESTS = "/tests/"


def words_of(task: Path, seen: Seen, read: Callable[[str], bytes | None]) -> frozenset[str]:
    """Return words of a task's tests, of programs that verification runs and of files that it opens but for libraries.

    Without lists of accounts, which every new shell opens: folders of any work have such names, "src" and "backup".
    `read`: what the image has at a path. Blocks.
    """
    files = sorted(set(_told_by(seen)).difference(LISTS))
    return _words(map(_start, _tests(task))) | _words(map(read, files))


def words_of_tests(task: Path) -> frozenset[str]:
    """Return words of a task's tests, and names of what lies in folders beside them: what they expect. Blocks."""
    tests = _tests(task)
    return _words(map(_start, tests)) | {path.name for path in tests if path.parent.name != "tests"}


def _tests(task: Path) -> list[Path]:
    tests = [path for folder in (task / "tests", *task.glob("steps/*/tests")) for path in folder.rglob("*")]
    return [path for path in sorted(tests) if path.is_file()]


def _words(texts: Iterable[bytes | None]) -> frozenset[str]:
    found = {word for text in _small(texts) for word in _WORD.findall(text)}
    return frozenset(word.decode(errors="replace") for word in found)


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES + 1)


def _small(texts: Iterable[bytes | None]) -> Iterator[bytes]:
    return itertools.islice((text for text in texts if text is not None and len(text) <= _MOST_BYTES), _MOST_FILES)


def _told_by(seen: Seen) -> Iterator[str]:
    opened = seen.opened or {}
    yield from (path for path in opened if not is_program(path) and not path.startswith((_TESTS, "/proc/", "/dev/")))
    for program in seen.programs.values():
        for word in program.words[:2]:
            path = posixpath.normpath(posixpath.join(program.cwd, word))
            if path in opened:
                yield path


def names_of(path: str, made: Collection[str], *, short: bool = False) -> set[str]:
    """Return words by which a program may ask for a file: its name and folders `made`.

    Its name without extension too, if `short`, or where programs are.
    """
    names = {posixpath.basename(one) for one in way(path) if one == path or one in made}
    return names | ({PurePosixPath(path).stem} if short or is_program(path) else set())
