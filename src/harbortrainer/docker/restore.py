"""Puts back the image's own programs and libraries in a container, before a verifier runs there. All functions block.

What the container has changed of its image is read from outside: in the layer's own folder where this process may read
it (root on the daemon's machine: microseconds), else by `docker diff`, for which the daemon walks the whole image (a
third of a second for a small one) and which misses a file that was replaced by one of equal size, mode and time.
"""

import contextlib
import functools
import io
import os
import re
import stat
import tarfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from docker.errors import NotFound
from docker.utils import decode_json_header

from harbortrainer.docker.cleaning import labels, remove_container
from harbortrainer.docker.container import container_name
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images import Image

PRELOAD, CACHE = "/etc/ld.so.preload", "/etc/ld.so.cache"
CONFIGURATION = (PRELOAD, CACHE, "/etc/nsswitch.conf")  # decide which libraries every program loads
OTHER_DIRS = ("/bin", "/sbin", "/etc/alternatives")  # lead to programs whatever PATH is
_ACCOUNTS = ("/etc/passwd", "/etc/group")  # the task may change them; without them nothing starts
_NAMES = """[ awk base64 basename bash busybox cat chgrp chmod chown cmp comm coreutils cp curl cut dash date dd diff
dirname du echo egrep env expr false fgrep find gawk git grep gunzip gzip head hostname id install kill ldd ln ls make
mawk md5sum mkdir mktemp mv nawk nohup node od original-awk paste perl pgrep ps printenv printf pwd python python3
readlink realpath rm rmdir sed seq setsid sh sha256sum sha512sum sleep sort stat tac tail tar tee test timeout touch tr
true truncate uname uniq wc which whoami xargs yes"""
_TOOLS = frozenset(_NAMES.split())
_VERSIONED = re.compile(r"(python|perl)\d[\d.]*")
# Honest work often installs another version before the image's: only the image's own files are put back.
_OFTEN_SHADOWED = re.compile(r"curl|git|make|node|python.*|perl.*")
_LIBRARY = re.compile(r"(ld[.-]|lib).*\.so(\.[\d.]+)?")
_BASES = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib")
_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
_HARDWARE = (
    "glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v4",
    "haswell", "tls", "x86_64", "avx512_1",
)  # fmt: skip
_LIBRARY_DIRS = [*_BASES, *(f"{base}/{triplet}" for base in _BASES for triplet in _TRIPLETS)]
LIBRARY_DIRS = tuple(_LIBRARY_DIRS + [f"{base}/{part}" for base in _LIBRARY_DIRS for part in _HARDWARE])
_LIBRARY_PATH = re.compile(rb"/[^\0]*\.so[^\0]*")
_CAP_SYS_ADMIN = 21  # without it the kernel hides overlayfs' own attributes
_OVERLAY_MARKS = ("trusted.overlay.opaque", "trusted.overlay.redirect")
_DELETED = 2  # a kind of change in `docker diff`
_GO_DIRECTORY = 1 << 31  # a bit of Go's file modes
_LIST = r"""
chain() {
  p=$2
  while d=$(cd -P "${p%/*}/" 2>/dev/null && pwd); do
    n=${p##*/}; p=${d%/}/$n; echo "$1 $p"; [ -L "$p" ] || break
    t=$(readlink "$p"); case $t in /*) p=$t ;; *) p=$d/$t ;; esac
  done
}
for f in $HT_TOOLS; do
  IFS=:; for d in $HT_PATH; do [ -f "$d/$f" ] && chain "T $f" "$d/$f"; done; unset IFS
done
for f in $HT_TOOLS; do LD_TRACE_LOADED_OBJECTS=1 "$f" </dev/null 2>/dev/null; done |
  grep -o '/[^ ]*\.so[^ ]*' | sort -u |
  while read -r f; do chain L "$f"; done
for f in /lib/ld-* /lib64/ld-* $HT_FILES; do [ -f "$f" ] && chain L "$f"; done
for d in "$@"; do if [ -L "$d" ]; then echo "S $d"; elif [ -d "$d" ]; then echo "D $d"; fi; done
"""


@dataclass(frozen=True)
class Tools:
    """Where an image has the tools that verification runs.

    `files`: all their paths, links on the way included. `first`: the first path on PATH by name. `libraries`: the
    path by name. `folders`, `links`: those that lead there.
    """

    files: frozenset[str]
    first: dict[str, str]
    libraries: dict[str, str]
    folders: frozenset[str]
    links: frozenset[str]


def restore_tools(container: str, image: Image, path: tuple[str, ...], run_id: str) -> list[str]:
    """Put back the programs that verification runs where they were replaced or hidden. Returns the paths.

    `path`: the folders of PATH. Other programs, packages and libraries stay as they are. The container may be stopped.
    Raises docker.errors.APIError.
    """
    layer = layer_of(container)
    folders = [*path, *LIBRARY_DIRS, *OTHER_DIRS]
    found = touched(layer, folders, CONFIGURATION)
    lost = [file for file in _ACCOUNTS if layer.removed(file)]
    above = set(_ways(folders))
    if not lost and not any(_matters(entry, above) for entry in found):
        return []
    known = tools_of(image, path, run_id)
    lost_folders = found & above
    made = [folder for folder in sorted(known.folders) if _below(folder, lost_folders)]
    copies = {file for file in known.files | known.links if file in found or _below(file, lost_folders)} | {*lost}
    if CACHE in found and not _misleads(container, known):
        copies.discard(CACHE)
    links = _shadows(found, known, path)
    links |= {file: "/dev/null" for file in (PRELOAD, CACHE) if file in found and file not in known.files}
    if copies or links or made:
        engine().put_archive(container, "/", _archive(image, made, sorted(copies), links, run_id))
    return sorted({*copies, *links, *lost_folders})


def restore_folder(container: str, image: Image, folder: str, run_id: str) -> None:
    """Copy the image's files of `folder` into the container's. Raises docker.errors.APIError."""
    with _temporary(image, run_id) as source:
        chunks, _ = engine().get_archive(source, folder)
        engine().put_archive(container, str(PurePosixPath(folder).parent), b"".join(chunks))


def _matters(entry: str, above: set[str]) -> bool:
    name, parent = PurePosixPath(entry).name, str(PurePosixPath(entry).parent)
    if entry in above or entry in CONFIGURATION or is_tool(name):
        return True
    return parent in LIBRARY_DIRS and _LIBRARY.fullmatch(name) is not None


def _below(path: str, folders: set[str]) -> bool:
    """Whether `path` is one of `folders` or in one."""
    return path in folders or any(str(parent) in folders for parent in PurePosixPath(path).parents)


def _shadows(found: set[str], known: Tools, path: Sequence[str]) -> dict[str, str]:
    """Path of each file that hides one of the image's tools or libraries -> the hidden path, to link to."""
    links: dict[str, str] = {}
    for entry in found:
        name, parent = PurePosixPath(entry).name, str(PurePosixPath(entry).parent)
        if entry in known.files or _below(entry, {*known.links}):
            continue
        if parent in path and name in known.first and not _OFTEN_SHADOWED.fullmatch(name):
            links[entry] = known.first[name]
        elif parent in LIBRARY_DIRS and name in known.libraries:
            links[entry] = known.libraries[name]
    return links


def _misleads(container: str, known: Tools) -> bool:
    """Whether the loader's cache sends the tools to libraries that are not the image's."""
    try:
        info, content = _content(container, CACHE)
    except NotFound:
        return True
    if not info.isfile():
        return True
    cached = _LIBRARY_PATH.findall(content)
    for file in {PurePosixPath(found.decode(errors="replace")) for found in cached}:
        known_place = str(file) in known.files or f"/usr{file}" in known.files
        if file.name in known.libraries and not known_place and str(file.parent) not in LIBRARY_DIRS:
            return True
    return False


def _archive(image: Image, folders: Sequence[str], copies: Sequence[str], links: dict[str, str], run_id: str) -> bytes:
    buffer = io.BytesIO()
    with (
        tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar,
        _temporary(image, run_id) as source,
    ):
        for folder in folders:
            tar.addfile(_entry(folder, tarfile.DIRTYPE))
        for path in copies:
            info, content = _content(source, path)
            info.name = path.lstrip("/")
            tar.addfile(info, io.BytesIO(content))
        for path, target in links.items():
            info = _entry(path, tarfile.SYMTYPE)
            info.linkname = target
            tar.addfile(info)
    return buffer.getvalue()


def _entry(path: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path.lstrip("/"))
    info.type, info.mode = kind, 0o755
    return info


@contextlib.contextmanager
def _temporary(image: Image, run_id: str, command: Sequence[str] = ("true",), **options: Any) -> Iterator[str]:
    """Name of a container of the image, created and not started."""
    name = container_name("tools")
    engine().create_container(image.reference, name=name, command=[*command], labels=labels(run_id), **options)
    try:
        yield name
    finally:
        remove_container(name)


def _content(container: str, path: str) -> tuple[tarfile.TarInfo, bytes]:
    """A file or link of the container. Raises docker.errors.NotFound."""
    chunks, _ = engine().get_archive(container, path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks)), mode="r:") as tar:
        member = tar.next()
        if member is None:
            raise tarfile.ReadError(f"{path}: an empty archive")
        file = tar.extractfile(member) if member.isfile() else None
        return member, file.read() if file else b""


def is_tool(name: str) -> bool:
    return name in _TOOLS or _VERSIONED.fullmatch(name) is not None


_known: dict[tuple[str, tuple[str, ...]], Tools] = {}
_listing = threading.Lock()


def tools_of(image: Image, path: tuple[str, ...], run_id: str) -> Tools:
    """What a fresh container of `image` lists; run once a process and image. Raises docker.errors.APIError."""
    with _listing:
        key = (image.reference, path)
        if key not in _known:
            _known[key] = _parse(_listed(image, path, run_id))
        return _known[key]


def _listed(image: Image, path: tuple[str, ...], run_id: str) -> str:
    script = [_LIST, "sh", *_ways([*path, *LIBRARY_DIRS, *OTHER_DIRS])]
    known = {"HT_TOOLS": " ".join(sorted(_TOOLS)), "HT_PATH": ":".join(path), "HT_FILES": " ".join(CONFIGURATION)}
    client = engine()
    host = client.create_host_config(network_mode="none")
    run = {"user": "0", "entrypoint": ["sh", "-c", *script], "command": [], "environment": known, "host_config": host}
    with _temporary(image, run_id, **run) as name:
        client.start(name)
        client.wait(name)
        return client.logs(name, stdout=True, stderr=False).decode(errors="replace")


def _parse(listed: str) -> Tools:
    rows: dict[str, list[str]] = {"T": [], "L": [], "S": [], "D": []}
    first: dict[str, str] = {}
    for line in listed.splitlines():
        kind, _, path = line.partition(" ")
        if kind == "T":
            name, _, path = path.partition(" ")
            first.setdefault(name, path)
        if kind in rows:
            rows[kind].append(path)
    libraries = {PurePosixPath(path).name: path for path in rows["L"]}
    return Tools(frozenset(rows["T"] + rows["L"]), first, libraries, frozenset(rows["D"]), frozenset(rows["S"]))


def layer_of(container: str) -> "_Folder | _Changes":
    """What has changed in a container, running or stopped. Raises docker.errors.DockerException."""
    driver = engine().inspect_container(container).get("GraphDriver") or {}
    upper = (driver.get("Data") or {}).get("UpperDir") if driver.get("Name") == "overlay2" else None
    if upper and _may_see_all() and os.access(upper, os.R_OK | os.X_OK):
        return _Folder(upper)
    return _Changes(container, engine().diff(container) or ())


def touched(layer: "_Folder | _Changes", folders: Iterable[str], files: Iterable[str]) -> set[str]:
    """Changed paths among `files`, the entries of `folders`, and the folders that lead to either."""
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


def _ways(folders: Iterable[str]) -> list[str]:
    """The folders and all above them, / left out."""
    return sorted({part for folder in folders for part in _way(folder)})


class _Folder:
    """overlayfs' upper folder: the container wrote what is in it. Its links are not followed."""

    def __init__(self, upper: str) -> None:
        self._upper = upper
        self._modes: dict[str, int | None] = {}

    def replaced(self, path: str) -> bool:
        """Whether `path` itself differs from the image's: another file, a link, a new folder, or removed."""
        mode = self._mode(path)
        return mode is not None and (not stat.S_ISDIR(mode) or self._is_new(path))

    def removed(self, path: str) -> bool:
        mode = self._mode(path)
        return mode is not None and stat.S_ISCHR(mode)  # a whiteout

    def names(self, folder: str) -> list[str]:
        """Names in `folder` that were added, changed or removed."""
        mode = self._mode(folder)
        return os.listdir(self._upper + folder) if mode is not None and stat.S_ISDIR(mode) else []

    def _mode(self, path: str) -> int | None:
        """None = nothing was written there, or its parent is no folder any more."""
        if path not in self._modes:
            self._modes[path] = None
            above, _, _ = path.rpartition("/")
            mode = self._mode(above) if above else stat.S_IFDIR
            if mode is not None and stat.S_ISDIR(mode):
                with contextlib.suppress(FileNotFoundError):
                    self._modes[path] = os.lstat(self._upper + path).st_mode
        return self._modes[path]

    def _is_new(self, folder: str) -> bool:
        """Whether it hides the image's folder of that name instead of adding to it."""
        return not set(_OVERLAY_MARKS).isdisjoint(os.listxattr(self._upper + folder))


class _Changes:
    """What `docker diff` lists. A folder is listed as changed also when only something in it has changed."""

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
