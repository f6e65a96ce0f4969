"""Reads what a container has changed of its image, from outside the container. All functions block.

Where this process may read the overlay's folders (root on the daemon's machine) a look costs microseconds. Elsewhere
`docker diff` lists the changes: the daemon walks the whole image (a third of a second for a small one) and misses a
file that was replaced by one of equal size, mode and time.
"""

import bisect
import contextlib
import functools
import io
import itertools
import json
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Protocol

from harbortrainer.docker.box.archive import READ, archived, raise_for_status, stat_of, url_of
from harbortrainer.docker.box.one_off import one_off
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.integrity.change import ChangeKind, FileChange
from harbortrainer.docker.integrity.image_files import OPAQUE, ImageFiles, has, mode_of, way

_CAP_SYS_ADMIN = 21  # without it the kernel hides overlayfs' own attributes
_REDIRECT = "trusted.overlay.redirect"
_MODIFIED, _ADDED, _DELETED = 0, 1, 2  # kinds of change in `docker diff`
_GO_DIRECTORY = 1 << 31  # a bit of Go's file modes
_MOST_FOLDERS, _MOST_IMAGES = 1024, 64
MAX_LISTED = 4 * 1024 * 1024  # of what `docker diff` lists
MAX_CONTENT = 8 * 1024 * 1024  # of a file that is read into memory
MAX_COMPARED = 256 * 1024 * 1024  # of files with new times; more count as unchanged
_PIECE = 1024 * 1024
_PATH_MAX = 4096
MOST_CHANGES = 100_000  # that are looked at
_MOST_SORTED = 10_000  # all threads wait for a sort
_GONE = (FileNotFoundError, NotADirectoryError)  # a process of the agent has removed it just now
_folders: dict[str, tuple[str, tuple[str, ...]]] = {}  # by container; names are never used twice


class Layer(Protocol):
    def changes(self, root: str) -> Iterator[FileChange]:
        """Yield every change at and below `root`; and, where a folder above it was removed or replaced, that folder."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return names in `folder` that were added, changed or removed, and folders in which something was."""
        ...

    def content(self, path: str) -> bytes | None:
        """Return the content of the container's file;

        None = no file is there, or one of more than MAX_CONTENT bytes.
        """
        ...

    def of_image(self, path: str) -> bytes | None:
        """Return the content of the image's file, or of what took its place; None as for `content`."""
        ...

    def in_image(self, path: str) -> bool:
        """Return whether the image has something there."""
        ...

    def target(self, path: str) -> str:
        """Return the target of a link; "" = no link is there."""
        ...

    def is_plain(self, path: str) -> bool:
        """Say whether a regular file with content is there. If the image has it: of the same rights, and not a copy."""
        ...

    def is_same(self, path: str) -> bool:
        """Say whether a regular file has the image's content; False where that cannot be read."""
        ...

    @property
    def whole(self) -> bool:
        """Whether all changes are known."""
        ...

    @property
    def image(self) -> "ImageFiles | None":
        """The image's files; None = they cannot be read from here."""
        ...


def layer_of(container: str, *, listed: bool = True) -> Layer | None:
    """Return what has changed in a container, running or stopped. Raises docker.errors.DockerException.

    `listed` false: None where only `docker diff` could tell.
    """
    known = _folders.get(container)
    upper, lowers = known or remember_folders(container, engine().inspect_container(container))
    if upper and _may_see_all() and os.access(upper, os.R_OK | os.X_OK):
        return OverlayLayer(upper, lowers)
    return ListedLayer(container, *_listed(container)) if listed else None


def _listed(container: str) -> tuple[list[dict[str, Any]], bool]:
    """What `docker diff` lists, of which the first MAX_LISTED bytes are read, and whether that is all."""
    with engine().get(url_of(container, "changes"), stream=True) as answer:
        if answer.status_code == HTTPStatus.INTERNAL_SERVER_ERROR:  # the daemon cannot look into such deep folders
            return [], False
        raise_for_status(answer)
        text = b""
        for piece in answer.iter_content(_PIECE):
            text += piece
            if len(text) > MAX_LISTED:
                break
    whole = len(text) <= MAX_LISTED
    try:
        return json.loads(text if whole else text[: text.rfind(b"},{") + 1] + b"]") or [], whole
    except ValueError:  # a name that looks like the end of an entry
        return [], False


def remember_folders(name: str, inspected: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Get the overlay's upper folder and lower ones, which a container keeps through its life; "" = another driver."""
    driver = inspected.get("GraphDriver") or {}
    data = driver.get("Data") or {}
    upper = data.get("UpperDir") if driver.get("Name") == "overlay2" else None
    if len(_folders) >= _MOST_FOLDERS:
        _folders.pop(list(_folders)[0], None)  # noqa: RUF015 -- threads add others meanwhile
    _folders[name] = upper or "", tuple(str(data.get("LowerDir") or "").split(":"))
    return _folders[name]


class OverlayLayer:
    """overlayfs' upper folder: the container wrote what is in it. Its links are not followed."""

    whole = True

    def __init__(self, upper: str, lowers: Iterable[str] = ()) -> None:
        self._upper = upper
        self._modes: dict[str, int] = {}
        self._to_compare = MAX_COMPARED
        self.image = ImageFiles(lowers)

    def changes(self, root: str) -> Iterator[FileChange]:
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
            # no program opens a longer path; the folders above it are new, and listed
            if len(os.fsencode(self._upper + path)) >= _PATH_MAX:
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
        stamp = (entry.st_ino, entry.st_ctime_ns)
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
        if was_folder and found is not None and _rights(entry) != _rights(os.lstat(found)):
            changes.append(FileChange(path, ChangeKind.CHANGED, folder=True, stamp=stamp, shallow=True))
        return changes, (iter(names), self.image.listed(path) if was_folder else set[str]())

    def is_plain(self, path: str) -> bool:
        if not stat.S_ISREG(self._mode(path)):
            return False
        found = self.image.find(path)
        with contextlib.suppress(*_GONE):
            entry = os.lstat(self._upper + path)
            return entry.st_size > 0 and (found is None or self._is_other(path, entry, found))
        return False

    def _is_other(self, path: str, entry: os.stat_result, found: str) -> bool:
        """Whether its content differs from the image's, if something does, and its rights do not."""
        old = os.lstat(found)
        if _rights(entry) != _rights(old) or not stat.S_ISREG(old.st_mode):
            return False
        if entry.st_size != old.st_size or entry.st_mtime_ns == old.st_mtime_ns:
            return True
        return (content := self._compared(path, entry.st_size)) is not None and content != _content_of(found)

    def is_same(self, path: str) -> bool:
        found = self.image.find(path)
        with contextlib.suppress(*_GONE):
            size = os.lstat(self._upper + path).st_size
            if found is not None and size == os.lstat(found).st_size:
                content = self._compared(path, size)
                return content is not None and content == _content_of(found)
        return False

    def _compared(self, path: str, size: int) -> bytes | None:
        """The content, as long as not too much was compared."""
        self._to_compare -= size
        return self.content(path) if self._to_compare > 0 else None

    def names(self, folder: str) -> list[str]:
        return _names(self._upper + folder) if stat.S_ISDIR(self._mode(folder)) else []

    def content(self, path: str) -> bytes | None:
        return _content_of(self._upper + path) if stat.S_ISREG(self._mode(path)) else None

    def of_image(self, path: str) -> bytes | None:
        found = self.image.find(path)
        return None if found is None else _content_of(found)

    def in_image(self, path: str) -> bool:
        return self.image.find(path) is not None

    def target(self, path: str) -> str:
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


class ListedLayer:
    """What `docker diff` lists. A folder is listed as changed also when only something in it has changed."""

    image = None

    def __init__(self, container: str, changes: Iterable[Mapping[str, Any]], whole: bool = True) -> None:
        self._container = container
        self.whole = whole
        self._kinds = {change["Path"]: change["Kind"] for change in changes}
        self._paths = sorted(self._kinds)
        self._folders = {path.rpartition("/")[0] or "/" for path in self._paths}

    def changes(self, root: str) -> Iterator[FileChange]:
        for part in (one for one in way(root) if one != root):
            kind = self._kinds.get(part)
            if kind == _DELETED or (kind == _MODIFIED and not self._is_folder(part)):
                yield FileChange(part, ChangeKind.REMOVED if kind == _DELETED else ChangeKind.CHANGED, shallow=True)
                yield FileChange(root, ChangeKind.REMOVED)
                return
        for path in (*(root,) * (root in self._kinds), *self._below(root)):
            if (kind := self._kinds[path]) == _DELETED:
                yield FileChange(path, ChangeKind.REMOVED)
            elif kind != _MODIFIED:
                yield FileChange(path, ChangeKind.ADDED, folder=path in self._folders)
            elif not self._is_folder(path):
                yield FileChange(path, ChangeKind.CHANGED)
            elif self._has_other_rights(path):
                yield FileChange(path, ChangeKind.CHANGED, folder=True, shallow=True)

    def names(self, folder: str) -> list[str]:
        names = (path[len(folder.rstrip("/")) + 1 :] for path in self._below(folder))
        return [name for name in names if "/" not in name]

    def _below(self, folder: str) -> Iterator[str]:
        start = folder.rstrip("/") + "/"
        paths = itertools.islice(self._paths, bisect.bisect_left(self._paths, start), None)
        return itertools.takewhile(lambda path: path.startswith(start), paths)

    def content(self, path: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError), entry(self._container, path) as (info, file):
            return _content(file) if info.isfile() else None
        return None

    def of_image(self, path: str) -> bytes | None:
        return self.content(path) if path not in self._kinds or self._kinds[path] == _MODIFIED else None

    def in_image(self, path: str) -> bool:
        kind = self._kinds.get(path)
        return kind in (_MODIFIED, _DELETED) or (kind is None and self._stat(path) is not None)

    def target(self, path: str) -> str:
        found = self._stat(path)
        return str(found["linkTarget"]) if found is not None else ""

    def is_plain(self, path: str) -> bool:
        """Return False for all that the image has: its rights may have changed."""
        found = self._stat(path) if self._kinds.get(path) == _ADDED else None
        return found is not None and found["mode"] >> 16 == 0 and found["size"] > 0

    def is_same(self, path: str) -> bool:
        return False

    def _has_other_rights(self, folder: str) -> bool:
        """Whether a folder has other rights than in the image, or is none there."""
        known = _image_rights(self._image)
        if folder not in known:
            with one_off(self._image, ("true",), "layer") as made:
                known[folder] = _rights_of(made, folder)
        return _rights_of(self._container, folder) != known[folder]

    @functools.cached_property
    def _image(self) -> str:
        """Its ID."""
        return engine().inspect_container(self._container)["Image"]

    def _is_folder(self, path: str) -> bool:
        found = self._stat(path)
        return found is not None and bool(found["mode"] & _GO_DIRECTORY)

    def _stat(self, path: str) -> dict[str, Any] | None:
        return stat_of(self._container, path)


@contextlib.contextmanager
def entry(container: str, path: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Yield what the container has at the path, and the content of a file. Raises FileNotFoundError, RuntimeError."""
    with archived(container, path) as tar:
        member = tar.next()
        if member is None:
            raise tarfile.ReadError(f"{path}: an empty archive")
        yield member, (tar.extractfile(member) if member.isfile() else None) or io.BytesIO()


@functools.lru_cache(_MOST_IMAGES)
def _image_rights(image: str) -> dict[str, tuple[bytes, int, int, int] | None]:
    """Of folders of the image, as they become known."""
    return {}


def _rights_of(container: str, path: str) -> tuple[bytes, int, int, int] | None:
    """With the kind of file; None = nothing is there."""
    with contextlib.suppress(FileNotFoundError), entry(container, path) as (info, _):
        return info.type, stat.S_IMODE(info.mode), info.uid, info.gid
    return None


def _content_of(path: str) -> bytes | None:
    """None where no regular file is."""
    try:
        with open(os.open(path, READ), "rb") as file:
            return _content(file) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError:  # a process of the agent has replaced it just now, or holds it
        return None


def _content(file: IO[bytes]) -> bytes | None:
    content = file.read(MAX_CONTENT + 1)
    return content if len(content) <= MAX_CONTENT else None


def _rights(entry: os.stat_result) -> tuple[int, int, int]:
    return stat.S_IMODE(entry.st_mode), entry.st_uid, entry.st_gid


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
