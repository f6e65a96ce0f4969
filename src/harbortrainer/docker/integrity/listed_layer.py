"""What `docker diff` lists of a container: where the folders of its layers cannot be read. All functions block.

The daemon walks the whole image (a third of a second for a small one) and misses a file that was replaced by one of
equal size, mode and time.
"""

import bisect
import contextlib
import functools
import itertools
import json
import stat
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from harbortrainer.docker.box.archive import GO_FOLDER, entry, raise_for_status, stat_of, url_of
from harbortrainer.docker.box.one_off import one_off
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.integrity.change import ChangeKind, FileChange
from harbortrainer.docker.integrity.image_files import content, way

MAX_LISTED = 4 * 1024 * 1024  # of what `docker diff` lists
_MODIFIED, _ADDED, _DELETED = 0, 1, 2  # kinds of change in `docker diff`
_PIECE = 1024 * 1024
_MOST_KEPT, _MOST_SIZE = 64, 64 * 1024  # of an image's files
_MOST_IMAGES = 64


class ListedLayer:
    """What `docker diff` lists, as OverlayLayer shows it. A folder in which something has changed is listed, too."""

    image = None

    def __init__(self, container: str, changes: Iterable[Mapping[str, Any]], whole: bool = True) -> None:
        self._container = container
        self.whole = whole
        self._kinds = {change["Path"]: change["Kind"] for change in changes}
        self._paths = sorted(self._kinds)
        self._folders = {path.rpartition("/")[0] or "/" for path in self._paths}

    @classmethod
    def of(cls, container: str) -> "ListedLayer":
        """Raises docker.errors.DockerException."""
        return cls(container, *_listed(container))

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
        return _content_in(self._container, path)

    def of_image(self, path: str) -> bytes | None:
        """Return the content of the image's file, or of what took its place."""
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
        old = self.original(path)
        return old is not None and old == self.content(path)

    def original(self, path: str) -> bytes | None:
        known = _originals(self._image)  # small ones are read once: the container takes a tenth of a second
        if path in known:
            return known[path]
        with one_off(self._image, "layer") as made:
            found = _content_in(made, path)
        if len(known) < _MOST_KEPT and len(found or b"") <= _MOST_SIZE:
            known[path] = found
        return found

    def _has_other_rights(self, folder: str) -> bool:
        """Whether a folder has other rights than in the image, or is none there."""
        known = _image_rights(self._image)
        if folder not in known:
            with one_off(self._image, "layer") as made:
                known[folder] = _rights_of(made, folder)
        return _rights_of(self._container, folder) != known[folder]

    @functools.cached_property
    def _image(self) -> str:
        """Its ID."""
        return engine().inspect_container(self._container)["Image"]

    def _is_folder(self, path: str) -> bool:
        found = self._stat(path)
        return found is not None and bool(found["mode"] & GO_FOLDER)

    def _stat(self, path: str) -> dict[str, Any] | None:
        return stat_of(self._container, path)


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


def _content_in(container: str, path: str) -> bytes | None:
    with contextlib.suppress(FileNotFoundError), entry(container, path) as (info, file):
        return content(file) if info.isfile() else None
    return None


@functools.lru_cache(_MOST_IMAGES)
def _originals(image: str) -> dict[str, bytes | None]:
    """Contents of files of the image, as they become known."""
    return {}


@functools.lru_cache(_MOST_IMAGES)
def _image_rights(image: str) -> dict[str, tuple[bytes, int, int, int] | None]:
    """Of folders of the image, as they become known."""
    return {}


def _rights_of(container: str, path: str) -> tuple[bytes, int, int, int] | None:
    """With the kind of file; None = nothing is there."""
    with contextlib.suppress(FileNotFoundError), entry(container, path) as (info, _):
        return info.type, stat.S_IMODE(info.mode), info.uid, info.gid
    return None
