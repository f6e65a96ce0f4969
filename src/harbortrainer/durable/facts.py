"""What is known of task directories, kept on disk: a corpus of thousands is read once, and again where files change."""

import atexit
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from harbortrainer.durable.files import cache_folder, make_folder, replace_text
from harbortrainer.errors import DiskFault

_METHOD = 6  # raise it when a fact is found in another way
_SETTLED_NS = 50_000_000  # a file that changed less than this before it was read may change again in the same tick


def fact(task: Path, name: str, find: Callable[[], Any]) -> Any:
    """Return the JSON value that `find` gives for a task directory, found again when a stat of its files changed."""
    folder, _, of = str(task).rpartition("/")
    return _store(folder).get(of, _stamp(str(task)), name, find)


def read_on_all_cores(tasks: Sequence[Path], reader: Sequence[str], many: int) -> None:
    """Keep the facts that processes of `python -m READER FILE`, one a core, find of tasks of which none is kept.

    FILE has a task directory a line. `many`: tasks for which the start of a process pays. What a process did not find,
    `fact` finds.
    """
    new = [str(task) for task in tasks if not _store(str(task.parent)).knows(task.name)]
    cores = min(os.cpu_count() or 1, len(new) // many)
    if cores < 2:
        return
    share = -(-len(new) // cores)
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory() as place:  # without a disk none is kept
        running: list[subprocess.Popen[bytes]] = []
        for n in range(cores):
            cache = Path(place, str(n))
            cache.mkdir()
            (cache / "tasks").write_text("\n".join(new[n * share : (n + 1) * share]))
            command = [sys.executable, "-m", *reader, str(cache / "tasks")]
            environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
            running.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        for process in running:
            process.wait()
        for folder in {str(task.parent) for task in tasks}:
            _store(folder).adopt(Path(place))


@contextlib.contextmanager
def unchanging() -> Iterator[None]:
    """Take the stats of tasks once within the outermost such block, of a command that only reads them."""
    _stamps.append(_stamps[-1] if _stamps else {})
    try:
        yield
    finally:
        _stamps.pop()


_stamps: list[dict[str, tuple[str, int]]] = []


class _Store:
    """The facts of one folder of tasks: name of a task -> [stamp of its files, {name: value}]."""

    def __init__(self, folder: str) -> None:
        key = f"{folder}\0{_METHOD}\0{Path(__file__).parent}"
        self._file = cache_folder("facts") / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        self._known: dict[str, tuple[str, dict[str, Any]]] = {}
        self._changed = False
        with contextlib.suppress(OSError, ValueError):
            self._known = json.loads(self._file.read_text())
        atexit.register(self.save)

    def get(self, task: str, stamped: tuple[str, int], name: str, find: Callable[[], Any]) -> Any:
        now, (stamp, newest) = time.time_ns(), stamped
        known, facts = self._known.get(task, ("", {}))
        if known != stamp:
            facts = {}
        if name in facts:
            return facts[name]
        found = find()
        if newest < now - _SETTLED_NS:
            facts[name] = found
            self._known[task] = stamp, facts
            self._changed = True
        return found

    def knows(self, task: str) -> bool:
        return task in self._known

    def adopt(self, place: Path) -> None:
        """Add what other processes have saved in cache folders of `place`."""
        for file in place.glob(f"*/harbortrainer/facts/{self._file.name}"):
            self._known |= json.loads(file.read_text())
            self._changed = True

    def save(self) -> None:
        """Write what is new; without a disk for it the next process finds it again."""
        if self._changed:
            with contextlib.suppress(OSError, DiskFault):
                make_folder(self._file.parent)
                replace_text(self._file, json.dumps(self._known))
                self._changed = False


@cache
def _store(folder: str) -> _Store:
    real = os.path.realpath(folder)
    return _Store(real) if real == folder else _store(real)


def _stamp(task: str) -> tuple[str, int]:
    """A digest of the names, inodes and changes of all files and folders of a task; the newest change, in ns."""
    if _stamps and task in _stamps[-1]:
        return _stamps[-1][task]
    found = _taken(task)
    if _stamps:
        _stamps[-1][task] = found
    return found


def _taken(task: str) -> tuple[str, int]:
    lines, newest, cut = list[str](), 0, len(task)
    folders = [task]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                s = entry.stat(follow_symlinks=False)
                changed = s.st_ctime_ns  # of content, mode and times alike
                lines.append(f"{entry.path[cut:]} {s.st_size} {changed} {s.st_ino}")
                newest = max(newest, changed)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    text = "\n".join(sorted(lines))
    return hashlib.sha1(text.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest(), newest
