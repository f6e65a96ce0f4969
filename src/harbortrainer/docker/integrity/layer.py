"""Reads what a container has changed of its image, from outside the container. All functions block.

Where this process may read the overlay's folders (root on the daemon's machine) a look costs microseconds. Elsewhere
`docker diff` lists the changes (listed_layer.py).
"""

import contextlib
import itertools
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from harbortrainer.docker.box.archive import READ
from harbortrainer.docker.box.first_process import noted, overlay_of
from harbortrainer.docker.box.root_folder import ATTRIBUTES
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.integrity.change import ChangeKind, FileChange, is_often_cleaned
from harbortrainer.docker.integrity.image_files import OPAQUE, ImageFiles, content, has, mode_of, way
from harbortrainer.docker.integrity.listed_layer import ListedLayer

_CAP_SYS_ADMIN = 21  # without it the kernel hides overlayfs' own attributes
_REDIRECT = "trusted.overlay.redirect"
MAX_COMPARED = 256 * 1024 * 1024  # of files with new times; more count as unchanged
_PATH_MAX = 4096
MOST_CHANGES = 100_000  # that are looked at
_MOST_SORTED = 10_000  # all threads wait for a sort
_GONE = (FileNotFoundError, NotADirectoryError)  # a process of the agent has removed it just now


type Layer = OverlayLayer | ListedLayer


def layer_of(container: str, *, listed: bool = True) -> Layer | None:
    """Return what has changed in a container, running or stopped. Raises docker.errors.DockerException.

    `listed` false: None where only `docker diff` could tell.
    """
    one = noted(container)
    upper, *lowers = one.overlay if one else overlay_of(engine().inspect_container(container))
    if upper and _may_see_all() and os.access(upper, os.R_OK | os.X_OK):
        return OverlayLayer(upper, lowers)
    return ListedLayer.of(container) if listed else None


class OverlayLayer:
    """overlayfs' upper folder: the container wrote what is in it. Its links are not followed.

    `whole`: all changes are known; `image`: its files.
    """

    whole = True

    def __init__(self, upper: str, lowers: Iterable[str] = (), compared: int = MAX_COMPARED) -> None:
        self._upper = upper
        self._modes: dict[str, int] = {}
        self._deep = set[str]()  # folders with what no absolute path reaches
        self._to_compare = compared
        self.image = ImageFiles(lowers)

    def changes(self, root: str) -> Iterator[FileChange]:
        """Yield every change at and below `root`; and, where a folder above it was removed or replaced, that folder."""
        for part in (one for one in way(root) if one != root):
            mode = self._mode(part)
            if not mode:
                return
            if not stat.S_ISDIR(mode):
                yield from self._led_away(part, root, removed=stat.S_ISCHR(mode))
                return
            if self._is_new(part) and not self._mode(root) and self.image.find(root):
                yield FileChange(root, ChangeKind.REMOVED)
                return
        if self._mode(root):
            yield from self._below(root)

    def _led_away(self, part: str, root: str, *, removed: bool) -> Iterator[FileChange]:
        """`part`, above `root`, is no folder any more: a link would lead to another place."""
        if self.image.find(root):
            yield FileChange(root, ChangeKind.REMOVED)
        if not removed:
            yield FileChange(part, ChangeKind.CHANGED if self.image.find(part) else ChangeKind.ADDED, shallow=True)
        elif self.image.find(root):
            yield FileChange(part, ChangeKind.REMOVED, shallow=True)

    def _below(self, root: str) -> Iterator[FileChange]:
        above, _, last = root.rpartition("/")
        waiting = [(above, iter([last]), {last})]  # folders, the names to look at, the image's names
        while waiting:
            folder, names, known = waiting[-1]
            if (name := next(names, None)) is None:
                waiting.pop()
                continue
            path = f"{folder}/{name}"
            # longer paths are opened from folders above, which are new, and listed
            if len(os.fsencode(self._upper + path)) >= _PATH_MAX:
                self._deep.add(folder)
                yield FileChange(folder, ChangeKind.ADDED)
                continue
            try:
                changes, below = self._look(path, self.image.find(path) if name in known else None)
            except _GONE:
                continue
            yield from changes
            if below is not None:
                waiting.append((path, *below))

    def _look(self, path: str, found: str | None) -> tuple[list[FileChange], tuple[Iterator[str], set[str]] | None]:
        """Changes of the entry itself; of a folder also the names in it, and the image's, none for a new one.

        `found`: the image's entry.
        """
        entry = os.lstat(self._upper + path)
        self._modes[path], stamp = entry.st_mode, (entry.st_ino, entry.st_ctime_ns)
        if stat.S_ISCHR(entry.st_mode):  # a whiteout; device nodes cannot be made here
            return [FileChange(path, ChangeKind.REMOVED, stamp=stamp)] if found else [], None
        kind = ChangeKind.CHANGED if found else ChangeKind.ADDED
        if not stat.S_ISDIR(entry.st_mode):
            return [FileChange(path, kind, stamp=stamp)], None
        was_folder = found is not None and stat.S_ISDIR(os.lstat(found).st_mode)
        changes, names = list[FileChange](), _names(self._upper + path)
        if not was_folder or has(self._upper + path, _REDIRECT):
            changes.append(FileChange(path, kind, folder=True, stamp=stamp))
        elif self._is_new(path):
            gone = sorted(self.image.names(path) - set(names))
            changes += (FileChange(f"{path}/{name}", ChangeKind.REMOVED) for name in gone)
        if was_folder and found is not None and self._is_other_folder(path, entry, found, names):
            changes.append(FileChange(path, ChangeKind.CHANGED, folder=True, stamp=stamp, shallow=True))
        return changes, (iter(names), self.image.listed(path) if was_folder else set[str]())

    def _is_other_folder(self, path: str, entry: os.stat_result, found: str, names: list[str]) -> bool:
        """Whether its rights differ from the image's, or its time does and nothing in it, where nobody works."""
        is_timed = entry.st_mtime_ns != os.lstat(found).st_mtime_ns and not names and not is_often_cleaned(f"{path}/")
        return is_timed or entry.st_atime_ns > time.time_ns() or _rights(self._upper + path) != _rights(found)

    def is_plain(self, path: str) -> bool:
        """Say whether a regular file with content is there. If the image has it: of the same rights, and not a copy."""
        if not stat.S_ISREG(self._mode(path)):
            return path in self._deep
        found = self.image.find(path)
        with contextlib.suppress(*_GONE):
            entry = os.lstat(self._upper + path)
            return entry.st_size > 0 and (found is None or self._is_other(path, entry, found))
        return False

    def _is_other(self, path: str, entry: os.stat_result, found: str) -> bool:
        """Whether its content differs from the image's, if something does, and its rights do not."""
        old = os.lstat(found)
        if _rights(self._upper + path) != _rights(found) or not stat.S_ISREG(old.st_mode):
            return False
        is_read = entry.st_nlink <= old.st_nlink and old.st_atime_ns <= entry.st_atime_ns <= time.time_ns()
        if entry.st_size != old.st_size or (entry.st_mtime_ns == old.st_mtime_ns and is_read):
            return True
        return self._compare(path, entry.st_size, found) is False

    def is_same(self, path: str) -> bool:
        """Say whether a regular file has the image's content; False where that cannot be read."""
        found = self.image.find(path)
        with contextlib.suppress(*_GONE):
            size = os.lstat(self._upper + path).st_size
            if found is not None and size == os.lstat(found).st_size:
                return self._compare(path, size, found) is True
        return False

    def _compare(self, path: str, size: int, found: str) -> bool | None:
        """Whether the contents are equal; None = one cannot be read, or too much was compared."""
        self._to_compare -= size
        new = self.content(path) if self._to_compare > 0 else None
        return None if new is None else new == _content_of(found)

    def names(self, folder: str) -> list[str]:
        """Return names in `folder` that were added, changed or removed, and folders in which something was."""
        return _names(self._upper + folder) if stat.S_ISDIR(self._mode(folder)) else []

    def content(self, path: str) -> bytes | None:
        """Return a file's content; None = no file is there, or one of more than MAX_CONTENT bytes."""
        return _content_of(self._upper + path) if stat.S_ISREG(self._mode(path)) else None

    def of_image(self, path: str) -> bytes | None:
        """Return the same of the image's file."""
        found = self.image.find(path)
        return None if found is None else _content_of(found)

    original = of_image

    def in_image(self, path: str) -> bool:
        """Return whether the image has something there."""
        return self.image.find(path) is not None

    def target(self, path: str) -> str:
        """Return the target of a link; "" = no link is there."""
        with contextlib.suppress(OSError):
            return os.readlink(self._upper + path) if stat.S_ISLNK(self._mode(path)) else ""
        return ""

    def _mode(self, path: str) -> int:
        """0 = nothing was written there, or its parent is no folder any more."""
        missing = list[str]()
        above = path.rstrip("/")
        while above and above not in self._modes:
            missing.append(above)
            above, _, _ = above.rpartition("/")
        mode = self._modes[above] if above else stat.S_IFDIR
        for part in reversed(missing):
            mode = self._modes[part] = mode_of(self._upper + part) if stat.S_ISDIR(mode) else 0
        return mode

    def _is_new(self, folder: str) -> bool:
        """Whether it hides the image's folder of that name instead of adding to it."""
        return has(self._upper + folder, OPAQUE) or has(self._upper + folder, _REDIRECT)


def _content_of(path: str) -> bytes | None:
    """None where no regular file is."""
    try:
        with open(os.open(path, READ), "rb") as file:
            return content(file) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError:  # a process of the agent has replaced it just now, or holds it
        return None


def _rights(path: str) -> tuple[object, ...]:
    entry, attributes = os.lstat(path), dict[str, bytes]()
    with contextlib.suppress(OSError):  # one is removed just now
        names = (name for name in os.listxattr(path, follow_symlinks=False) if name.startswith(ATTRIBUTES))
        attributes |= {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
    return stat.S_IMODE(entry.st_mode), entry.st_uid, entry.st_gid, attributes


def _names(folder: str) -> list[str]:
    names = list[str]()
    with contextlib.suppress(*_GONE), os.scandir(folder) as entries:
        names += [entry.name for entry in itertools.islice(entries, MOST_CHANGES + 1)]
    return sorted(names) if len(names) < _MOST_SORTED else names


def _may_see_all() -> bool:
    """Whether the kernel shows this process overlayfs' own attributes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return False
    effective = int(status.read_text().split("CapEff:")[1].split()[0], 16)
    return bool(effective >> _CAP_SYS_ADMIN & 1)
