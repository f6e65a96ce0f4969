"""Reads the daemon's archives of a container's files, with limits, and writes what is in them below a folder.

The agent made those files. Special files are left out, and links that lead out of the folder, with all that would lie
below them. Nothing is written through a link: each part of a name is opened below the one before it, and links come
last. All functions block.
"""

import contextlib
import io
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Self

import requests
from docker.errors import create_api_error_from_http_exception
from docker.utils import decode_json_header

from harbortrainer.docker.daemon import REQUEST_TIMEOUT_SEC, engine

GO_FOLDER, GO_LINK = 1 << 31, 1 << 27  # bits of Go's file modes
MAX_DEPTH = 128  # of folders
MAX_NAME, MAX_PART = 1024, 255  # bytes; longer names are left out
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe or a lease does not block it
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 64 * 1024  # tarfile copies what it has of one at each header
_LATEST_NS = 2**33 * 10**9  # file systems know no much later time
Parts = tuple[str, ...]
Links = dict[Parts, str]  # where each leads
Chosen = Callable[[str], bool]  # whether the file of this relative path is wanted


class TooMuch(RuntimeError):
    """A transfer is beyond its limits; what came before that is there."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of a transfer. `size`: bytes of all its files; `entries`: files and folders; `seconds`: until it is
    here.
    """

    size: int
    entries: int
    seconds: float


WORK = ReadLimits(2 * 1024**3, 100_000, 300.0)  # what is graded elsewhere
LOGS = ReadLimits(8 * 1024**2, 2_000, 20.0)  # Harbor reads them while all trials wait, and copies them back
REWARD = ReadLimits(64 * 1024, 1, 5.0)


class Target:
    """A folder of this machine. `what` comes into it, as errors name it. Raises TooMuch beyond `limits`."""

    def __init__(self, folder: Path, what: str, limits: ReadLimits = WORK) -> None:
        self._what, self._limits = what, limits
        self._bytes = self._entries = 0
        self._root = os.open(folder, FOLDER)
        self._last, self._last_parts = os.dup(self._root), Parts()
        self._times: list[tuple[Parts, int]] = []  # of folders, which change while files come

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._last)
        os.close(self._root)

    @property
    def room(self) -> int:
        """The bytes that it may still take."""
        return self._limits.size - self._bytes

    def count(self, name: str) -> None:
        """Count one entry, kept or not."""
        self._entries += 1
        if self._entries > self._limits.entries:
            raise TooMuch(f"{self._what} has more than {self._limits.entries:,} files and folders")
        if name.count("/") > MAX_DEPTH:
            raise TooMuch(f"{self._what} has folders more than {MAX_DEPTH} deep")

    def add_folder(self, parts: Parts, time_ns: int) -> None:
        """Make the folder and those above it. A file or link of one of these names goes."""
        self._enter(parts)
        self._times.append((parts, time_ns))

    def add_file(self, parts: Parts, mode: int, time_ns: int, size: int, content: IO[bytes]) -> None:
        """Write a file in place of a file or link; where a folder is, that stays. Modes are tarfile.data_filter's."""
        self._bytes += size
        if self._bytes > self._limits.size:
            raise TooMuch(f"{self._what} is larger than {self._limits.size >> 10:,} KiB")
        folder = self._enter(parts[:-1])
        try:
            os.unlink(parts[-1], dir_fd=folder)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            return
        mode = mode & 0o755 | 0o600
        with open(os.open(parts[-1], NEW, 0o600, dir_fd=folder), "wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
            file.flush()
            os.fchmod(file.fileno(), mode if mode & 0o100 else mode & ~0o011)
            _set_time(file.fileno(), time_ns)

    def add_links(self, links: Links) -> None:
        """Make those that lead further down (relative, without ".."), where nothing of that name is."""
        for parts, to in links.items():
            if _parts(to):
                with contextlib.suppress(FileExistsError):
                    os.symlink(to, parts[-1], dir_fd=self._enter(parts[:-1]))

    def read(self, parts: Parts) -> IO[bytes]:
        """Return a file that was added."""
        return open(os.open(parts[-1], READ, dir_fd=self._enter(parts[:-1])), "rb")

    def finish(self) -> None:
        """Give the folders their times."""
        for parts, time_ns in reversed(self._times):
            _set_time(self._enter(parts), time_ns)

    def _enter(self, parts: Parts) -> int:
        """The folder's descriptor, until the next call."""
        if parts != self._last_parts:
            at = os.dup(self._root)
            for part in parts:
                try:
                    below = _folder(part, at)
                finally:
                    os.close(at)
                at = below
            os.close(self._last)
            self._last, self._last_parts = at, parts
        return self._last


def _folder(part: str, above: int) -> int:
    """A folder in an open one, made if missing or no folder."""
    with contextlib.suppress(FileNotFoundError):
        try:
            return os.open(part, FOLDER, dir_fd=above)
        except NotADirectoryError:  # a link, too
            os.unlink(part, dir_fd=above)
    os.mkdir(part, dir_fd=above)
    return os.open(part, FOLDER, dir_fd=above)


def _set_time(descriptor: int, time_ns: int) -> None:
    time_ns = min(max(0, time_ns), _LATEST_NS)
    os.utime(descriptor, ns=(time_ns, time_ns))


def all_files(_: str) -> bool:
    return True


def fetch_folder(
    container: str,
    source: str,
    target: Path,
    exclude: Sequence[str] = (),
    *,
    chosen: Chosen = all_files,
    limits: ReadLimits = WORK,
) -> None:
    """Copy the contents of the container's folder into `target`, without what a pattern of tar's `--exclude` matches.

    Raises FileNotFoundError, TooMuch; RuntimeError for what comes broken.
    """
    target.mkdir(parents=True, exist_ok=True)
    what = _what(container, source)
    with archived(container, source.rstrip("/") + "/.", limits.seconds) as tar, Target(target, what, limits) as into:
        unpack(tar, into, exclude, chosen)


def fetch_file(container: str, source: str, target: Path, limits: ReadLimits = WORK) -> None:
    """Copy one file to `target`, or into it when it is a directory. Raises as `fetch_folder`."""
    target = target / Path(source).name if target.is_dir() else target
    target.parent.mkdir(parents=True, exist_ok=True)
    what = _what(container, source)
    with archived(container, source, limits.seconds) as tar, Target(target.parent, what, limits) as into:
        member = tar.next()
        if member is None or not member.isreg():
            raise FileNotFoundError(f"{source} is not a file")
        _add(tar, member, into, (target.name,))


def unpack(tar: tarfile.TarFile, into: Target, exclude: Sequence[str] = (), chosen: Chosen = all_files) -> None:
    """Write an archive's files, folders, and links that lead further down. Hard links to files of it become copies."""
    left_out, files, links = set[Parts](), set[Parts](), Links()
    while (member := tar.next()) is not None:
        tar.members.clear()  # pyright: ignore[reportAttributeAccessIssue] it would keep all
        into.count(member.name)
        parts = _parts(member.name)
        if not parts or any(parts[:i] in left_out for i in range(1, len(parts) + 1)):
            continue
        if _is_excluded(parts, exclude) or not (member.isdir() or chosen("/".join(parts))):
            left_out.add(parts)
        elif member.isdir():
            into.add_folder(parts, _time_ns(member))
        elif member.isreg():
            _add(tar, member, into, parts)
            files.add(parts)
        elif member.islnk() and (of := _parts(member.linkname)) and of in files:
            with into.read(of) as file:
                into.add_file(parts, member.mode, _time_ns(member), os.fstat(file.fileno()).st_size, file)
        else:
            left_out.add(parts)
            if member.issym():
                links[parts] = member.linkname
    into.add_links(links)
    into.finish()


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, into: Target, parts: Parts) -> None:
    content = tar.extractfile(member)
    assert content is not None
    into.add_file(parts, member.mode, _time_ns(member), member.size, content)


def _parts(name: str) -> Parts | None:
    """None = a name that leads out, or one that other programs could not open."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or "\0" in name or len(os.fsencode(name)) > MAX_NAME:
        return None
    return None if any(len(os.fsencode(part)) > MAX_PART for part in parts) else parts


def _is_excluded(parts: Parts, patterns: Sequence[str]) -> bool:
    """Whether tar would leave it out: a pattern matches the whole name, or its end after some slash."""
    ends = ["/".join(parts[i:]) for i in range(len(parts))]
    return any(fnmatchcase(end, pattern.rstrip("/")) for pattern in patterns for end in (f"./{ends[0]}", *ends))


def _time_ns(member: tarfile.TarInfo) -> int:
    return int(min(max(0, member.mtime), _LATEST_NS // 10**9) * 10**9)


def _what(container: str, path: str) -> str:
    return f"{path} in container {container}"


class _Stream(io.RawIOBase):
    """The pieces of an answer as a file, for some time. tarfile takes them as long as they are."""

    def __init__(self, pieces: Iterator[bytes], end: float, late: TooMuch) -> None:
        self._pieces, self._end, self._late = pieces, end, late

    def read(self, size: int = -1, /) -> bytes:
        try:
            piece = next(self._pieces, b"")
        except requests.ConnectionError:  # nothing came for so long, if the daemon did not go away
            if time.monotonic() > self._end:
                raise self._late from None
            raise
        if time.monotonic() > self._end:
            raise self._late
        return piece


def stat_of(container: str, path: str) -> dict[str, Any] | None:
    """Return what the daemon says of an entry: Go's `mode`, `size`, `linkTarget`; None = nothing is there."""
    url = url_of(container, "archive")
    answer = engine().head(url, params={"path": path}, timeout=REQUEST_TIMEOUT_SEC)
    status = answer.headers.get("X-Docker-Container-Path-Stat")
    return None if status is None else decode_json_header(status)


def is_folder(container: str, path: str) -> bool:
    """Return whether the path leads to a folder."""
    found = stat_of(container, path)
    if found and found["mode"] & GO_LINK:
        found = stat_of(container, found["linkTarget"])
    return found is not None and bool(found["mode"] & GO_FOLDER)


def url_of(container: str, what: str) -> str:
    """Return the URL of a request to the daemon that docker-py would read whole."""
    client = engine()
    return f"{client.base_url}/v{client.api_version}/containers/{container}/{what}"


def raise_for_status(answer: requests.Response) -> None:
    """Raises docker.errors.APIError, as docker-py does."""
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        raise create_api_error_from_http_exception(error) from error


@contextlib.contextmanager
def archived(container: str, path: str, seconds: float = WORK.seconds) -> Iterator[tarfile.TarFile]:
    """Yield the daemon's archive of a file or folder, to be read once, in order.

    Raises FileNotFoundError; RuntimeError for a broken one, TooMuch after `seconds`; docker.errors.APIError.
    """
    what, end = _what(container, path.removesuffix("/.")), time.monotonic() + seconds
    late = TooMuch(f"{what} took longer than {seconds:g} s to come")
    try:
        opened = engine().get(url_of(container, "archive"), params={"path": path}, stream=True, timeout=seconds)
    except requests.ReadTimeout:
        raise late from None
    with opened as answer:  # once it is closed, the daemon stops packing
        if answer.status_code == HTTPStatus.NOT_FOUND:
            raise FileNotFoundError(f"no {what}")
        raise_for_status(answer)
        stream = _Stream(answer.iter_content(_CHUNK), end, late)
        try:
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK) as tar:
                yield tar
        except tarfile.TarError as error:
            raise RuntimeError(f"{what} came as a broken archive") from error


@contextlib.contextmanager
def entry(container: str, path: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Yield what the container has at the path, and the content of a file. Raises FileNotFoundError, RuntimeError."""
    with archived(container, path) as tar:
        member = tar.next()
        if member is None:
            raise tarfile.ReadError(f"{path}: an empty archive")
        yield member, (tar.extractfile(member) if member.isfile() else None) or io.BytesIO()
