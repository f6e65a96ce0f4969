"""The files of an image, read from its layers' folders. All functions block."""

import contextlib
import functools
import os
import stat
from collections.abc import Iterable, Iterator
from typing import IO

OPAQUE = "trusted.overlay.opaque"  # of a folder that hides those of lower layers
MAX_CONTENT = 8 * 1024 * 1024  # of a file that is read into memory
_MOST_LAYERS = 256  # the first one of each container is its own


def way(path: str) -> Iterator[str]:
    """Yield /a/b/c -> /a, /a/b, /a/b/c."""
    at = 0
    while (at := path.find("/", at + 1)) > 0:
        yield path[:at]
    if path.strip("/"):
        yield path


@functools.lru_cache(_MOST_LAYERS)
def _names_below(lower: str) -> frozenset[str]:
    return frozenset(name for _, folders, files in os.walk(lower) for name in folders + files)


class ImageFiles:
    """The merged view of an image's layers, read from their folders. Links are not followed."""

    def __init__(self, lowers: Iterable[str]) -> None:
        self._lowers = tuple(lowers)
        self._with: dict[str, list[str]] = {}  # by folder: many files lie in one

    def find(self, path: str) -> str | None:
        """Return the path on this machine; None = the image has nothing there."""
        folder, _, _ = path.rpartition("/")
        if folder not in self._with:
            self._with[folder] = [*self._layers_with(folder)]
        for lower in self._with[folder]:
            if mode := mode_of(lower + path):
                return None if stat.S_ISCHR(mode) else lower + path
        return None

    def _layers_with(self, folder: str) -> Iterator[str]:
        """Layers that have the folder, and are not hidden there by one above them."""
        for lower in self._lowers:
            opaque = False
            for part in way(folder):
                mode = mode_of(lower + part)
                if not mode:
                    break
                if not stat.S_ISDIR(mode):
                    return
                opaque = opaque or has(lower + part, OPAQUE)
            else:
                yield lower
            if opaque:
                return

    def has_name(self, name: str) -> bool:
        """Return whether an entry has the name, wherever it is; also one that an upper layer hides."""
        return any(name in _names_below(lower) for lower in self._lowers)

    def names(self, folder: str) -> set[str]:
        """Return names of the image's entries in `folder`."""
        return {name for name in self.listed(folder) if self.find(f"{folder.rstrip('/')}/{name}") is not None}

    def listed(self, folder: str) -> set[str]:
        """Return the same, with those that an upper layer hides."""
        found: set[str] = set()
        for lower in self._lowers:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found.update(os.listdir(lower + folder))
        return found


def mode_of(path: str) -> int:
    """Return 0 = nothing is there."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def has(folder: str, attribute: str) -> bool:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a process of the agent has removed it just now
        return attribute in os.listxattr(folder)
    return False


def content(file: IO[bytes]) -> bytes | None:
    """Return None where more than MAX_CONTENT bytes are in the file."""
    found = file.read(MAX_CONTENT + 1)
    return found if len(found) <= MAX_CONTENT else None
