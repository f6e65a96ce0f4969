"""What a container has changed of its image's files, seen from outside. All functions block.

From the layer's own folder, where this process may read it (root on the daemon's machine: microseconds); else from
`docker diff`, for which the daemon walks the whole image (a third of a second for a small one), and which does not see
a file that was replaced by one of the same size, mode and time.
"""

import functools
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from docker.utils import decode_json_header

from src.rollout.docker.engine import engine

_CAP_SYS_ADMIN = 21  # without it the kernel hides overlayfs' own attributes
_DELETED = 2  # a kind of change
_GO_DIRECTORY = 1 << 31  # of Go's file modes
_MARKS = ("trusted.overlay.opaque", "trusted.overlay.redirect")


class Layer(Protocol):
    def replaced(self, path: str) -> bool:
        """Whether `path` itself is not what the image has there: another file, a link, a new folder, nothing."""
        ...

    def removed(self, path: str) -> bool: ...

    def names(self, folder: str) -> list[str]:
        """Names in `folder` that were added, changed or removed."""
        ...


def layer_of(container: str) -> Layer:
    """Of a container that may run or be stopped. Raises docker.errors.DockerException."""
    driver = engine().inspect_container(container).get("GraphDriver") or {}
    upper = (driver.get("Data") or {}).get("UpperDir") if driver.get("Name") == "overlay2" else None
    if upper and _may_see_all() and os.access(upper, os.R_OK | os.X_OK):
        return _Folder(upper)
    return _Changes(container, engine().diff(container) or ())


def touched(layer: Layer, folders: Iterable[str], files: Iterable[str]) -> set[str]:
    """Those of `files`, of the entries of `folders`, and of the folders that lead there, that are not the image's."""
    found: set[str] = set()
    for folder in folders:
        way = _way(folder)
        found.update(path for path in way if layer.replaced(path))
        found.update(f"{folder.rstrip('/')}/{name}" for name in layer.names(folder))
    for file in files:
        found.update(path for path in _way(file) if layer.replaced(path))
    return found


@functools.cache
def _way(path: str) -> tuple[str, ...]:
    """/a/b/c -> /a, /a/b, /a/b/c."""
    return tuple(str(part) for part in [*reversed(PurePosixPath(path).parents), PurePosixPath(path)][1:])


class _Folder:
    """overlayfs' upper folder: what is in it was written by the container. Its links lead nowhere for us."""

    def __init__(self, upper: str) -> None:
        self._upper = upper
        self._modes: dict[str, int | None] = {}

    def replaced(self, path: str) -> bool:
        mode = self._mode(path)
        return mode is not None and (not stat.S_ISDIR(mode) or self._is_new(path))

    def removed(self, path: str) -> bool:
        mode = self._mode(path)
        return mode is not None and stat.S_ISCHR(mode)  # a whiteout

    def names(self, folder: str) -> list[str]:
        mode = self._mode(folder)
        return os.listdir(self._upper + folder) if mode is not None and stat.S_ISDIR(mode) else []

    def _mode(self, path: str) -> int | None:
        """None = nothing was written there, or above it is no folder any more."""
        if path not in self._modes:
            above, _, _ = path.rpartition("/")
            mode = self._mode(above) if above else stat.S_IFDIR
            self._modes[path] = self._look(path) if mode is not None and stat.S_ISDIR(mode) else None
        return self._modes[path]

    def _look(self, path: str) -> int | None:
        try:
            return os.lstat(self._upper + path).st_mode
        except FileNotFoundError:
            return None

    def _is_new(self, folder: str) -> bool:
        """Whether it hides the image's folder of that name instead of adding to it."""
        present = os.listxattr(self._upper + folder)
        return any(mark in present for mark in _MARKS)


class _Changes:
    """What `docker diff` lists. That a folder has changed may mean no more than that something in it has."""

    def __init__(self, container: str, changes: Iterable[Mapping[str, Any]]) -> None:
        self._container = container
        self._kinds = {change["Path"]: change["Kind"] for change in changes}

    def replaced(self, path: str) -> bool:
        kind = self._kinds.get(path)
        return kind == _DELETED or (kind is not None and not self._is_folder(path))

    def removed(self, path: str) -> bool:
        return self._kinds.get(path) == _DELETED

    def names(self, folder: str) -> list[str]:
        start = folder.rstrip("/") + "/"
        return [path[len(start) :] for path in self._kinds if path.startswith(start) and "/" not in path[len(start) :]]

    def _is_folder(self, path: str) -> bool:
        client = engine()
        url = f"{client.base_url}/v{client.api_version}/containers/{self._container}/archive"
        status = client.head(url, params={"path": path}).headers.get("X-Docker-Container-Path-Stat")
        return status is not None and bool(decode_json_header(status)["mode"] & _GO_DIRECTORY)


def _may_see_all() -> bool:
    """Whether the kernel shows this process overlayfs' own attributes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return False
    effective = int(status.read_text().split("CapEff:")[1].split()[0], 16)
    return bool(effective >> _CAP_SYS_ADMIN & 1)
