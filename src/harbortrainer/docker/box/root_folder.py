"""Files of a running container, read and written from outside, through /proc/PID/root of its first process.

No process starts in the container and the daemon is not asked: a tenth of the cost of a shell with tar. It needs root
on the daemon's machine. The agent owns what is there: no link is followed, nothing but plain files and folders of the
container's own layer is touched. What is unusual is left to the caller's other ways. All functions block.
"""

import contextlib
import errno
import io
import itertools
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from harbortrainer.docker.box.archive import (
    FOLDER,
    LOGS,
    MAX_NAME,
    NEW,
    READ,
    Chosen,
    Links,
    Parts,
    Target,
    TooMuch,
    all_files,
)
from harbortrainer.docker.box.container import FILE_RIGHTS, NETWORK_FILES
from harbortrainer.docker.box.first_process import began, noted, process_folder
from harbortrainer.docker.box.network_files import added, is_same

_MOST_NETWORK = 64 * 1024  # bytes of a network file
# Bytes: the daemon and its runtime read these, and wait for a pipe.
USERS, MOST_USERS = ("/etc/passwd", "/etc/group"), 16 << 20
_FOLDERS = {".": 0o755, "pts": 0o755, "shm": 0o1777, "mqueue": 0o1777}  # of /dev
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
ATTRIBUTES = ("user.", "security.capability", "system.posix_acl_")  # that a container may give to its files
_STREAMS = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}


class Unusual(Exception):
    """Something is there that only a program in the container, or the daemon, can transfer."""


def copy_logs(name: str, source: str, target: Path, first: Sequence[str] = (), chosen: Chosen = all_files) -> int:
    """Copy what LOGS allow of the container's folder `source` into `target`, its files `first` before all others.

    Returns how many entries were left out of those that were seen: what does not fit, or does not open at once, special
    files, mounts. Raises Unusual before anything is written; OSError of `target`.
    """
    with contextlib.ExitStack() as opened:
        with _entered(name) as root, contextlib.ExitStack() as above:
            folder = root
            for part in _parts(source):
                folder = _opened(part, folder, above)
            folder = os.dup(folder)
            opened.callback(os.close, folder)
        target.mkdir(parents=True, exist_ok=True)
        with Target(target, f"{source} in container {name}", LOGS) as into:
            return _Logs(folder, into, chosen).copy(first)


def find_folder(name: str, path: str) -> None:
    """Raises Unusual where the path is no folder of the container's own, or leads through links to one."""
    with _entered(name) as folder, contextlib.ExitStack() as above:
        for part in _parts(path):
            folder = _opened(part, folder, above)


class _Logs:
    """The files below an open folder, which change meanwhile: it waits for no program in the container."""

    def __init__(self, folder: int, into: Target, chosen: Chosen) -> None:
        self._folder, self._into, self._chosen = folder, into, chosen
        self._device = os.fstat(folder).st_dev
        self._waiting: list[Parts] = []
        self._links: Links = {}
        self._left_out = 0

    def copy(self, first: Sequence[str]) -> int:
        try:
            for name in first:
                self._copy((name,), self._folder)
            self._copy_entries((), self._folder, first)
            while self._waiting:
                self._copy_folder(self._waiting.pop())
        except TooMuch:
            self._left_out += 1 + len(self._waiting)
        self._into.add_links(self._links)
        self._into.finish()
        return self._left_out

    def _copy_folder(self, parts: Parts) -> None:
        with contextlib.ExitStack() as opened:
            folder = self._folder
            try:
                for part in parts:
                    folder = _opened(part, folder, opened)
            except (OSError, Unusual):  # it has gone, or is a mount
                self._left_out += 1
            else:
                self._copy_entries(parts, folder)

    def _copy_entries(self, above: Parts, folder: int, but: Sequence[str] = ()) -> None:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, LOGS.entries + 1))
        for name in names:
            if name not in but:
                self._copy((*above, name), folder)

    def _copy(self, parts: Parts, folder: int) -> None:
        try:
            found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        except OSError:  # it has gone
            return
        path = "/".join(parts)
        if len(os.fsencode(path)) > MAX_NAME:
            self._left_out += 1
            return
        self._into.count(path)
        if stat.S_ISDIR(found.st_mode):
            self._into.add_folder(parts, found.st_mtime_ns)
            self._waiting.append(parts)
        elif stat.S_ISLNK(found.st_mode):
            with contextlib.suppress(OSError):
                self._links[parts] = os.readlink(parts[-1], dir_fd=folder)
        elif found.st_dev != self._device:
            self._left_out += 1
        elif self._chosen(path):
            try:
                found, content = _read(os.open(parts[-1], READ, dir_fd=folder), self._into.room)
            except (OSError, Unusual):
                self._left_out += 1
            else:
                self._into.add_file(parts, found.st_mode, found.st_mtime_ns, len(content), io.BytesIO(content))


def copy_in(name: str, source: Path, target: str) -> None:
    """Put the contents of `source` into the container's folder `target`, made if missing; owned by root, modes kept.

    Files that are there are replaced. Raises Unusual, also when a part was written.
    """
    source, folders = source.resolve(), list[tuple[list[str], os.stat_result]]()
    with _entered(name) as root:
        for path in (source, *sorted(source.rglob("*"))):
            parts, found = [*_parts(target), *path.relative_to(source).parts], path.lstat()
            with contextlib.ExitStack() as opened:
                if stat.S_ISDIR(found.st_mode):
                    _below(parts, root, opened)
                    folders.append((parts, found))
                elif stat.S_ISREG(found.st_mode):
                    _write(parts[-1], _below(parts[:-1], root, opened), path, found)
                else:
                    raise Unusual(path)
        for parts, found in reversed(folders[1:]):
            with contextlib.ExitStack() as opened:
                _finish(_below(parts, root, opened), found)


def _below(parts: Sequence[str], folder: int, opened: contextlib.ExitStack) -> int:
    """The folder below an open one, made if missing."""
    for part in parts:
        folder = _made(part, folder, 0o755, opened)
    return folder


def _write(name: str, folder: int, source: Path, found: os.stat_result) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    with source.open("rb") as content, open(os.open(name, NEW, 0o600, dir_fd=folder), "wb") as file:
        shutil.copyfileobj(content, file)
        file.flush()
        os.fchown(file.fileno(), 0, 0)
        _finish(file.fileno(), found)


def _finish(descriptor: int, found: os.stat_result) -> None:
    os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
    os.utime(descriptor, ns=(found.st_mtime_ns, found.st_mtime_ns))


def renew(name: str, folders: Mapping[str, int], away: str) -> None:
    """Make empty `folders`, with these modes, in place of what is there: a full one becomes `away`-TOKEN.

    Raises Unusual, also for a mount, or a folder of the image that is not empty.
    """
    with _entered(name) as root, contextlib.ExitStack() as opened:
        *above_away, last_away = _parts(away)
        for path, mode in folders.items():
            *above, last = _parts(path)
            folder = _way(above, root, opened)
            try:
                os.rmdir(last, dir_fd=folder)
            except FileNotFoundError:
                pass
            except NotADirectoryError:
                os.unlink(last, dir_fd=folder)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                to = _way(above_away, root, opened)
                os.rename(last, f"{last_away}-{secrets.token_hex(4)}", src_dir_fd=folder, dst_dir_fd=to)
            _made(last, folder, mode, opened)


def _way(parts: Sequence[str], folder: int, opened: contextlib.ExitStack) -> int:
    """The folder below an open one, made in place of files and links."""
    for part in parts:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(part, dir_fd=folder)
        folder = _made(part, folder, 0o755, opened)
    return folder


def changed_system(name: str, network: Mapping[str, str]) -> dict[str, str]:
    """Return which of /, /dev and the network files have other rights, owners or attributes, devices, or content.

    With the lines that a network file has more, if that is all.

    Raises Unusual when that cannot be told, or /tmp is no folder.
    """
    with _entered(name) as root, contextlib.ExitStack() as opened:
        _opened("tmp", root, opened)
        folder = _opened("etc", root, opened)
        plain = stat.S_IFREG | FILE_RIGHTS, 0, 0, 0, 0
        names = {path: os.path.basename(path) for path in NETWORK_FILES}
        changed = {path: "" for path, file in names.items() if _rights(folder, file) != plain}
        known = {path: _content(names[path], folder) for path in network if path not in changed}
        changed |= {path: added(now, network[path]) for path, now in known.items() if not is_same(now, network[path])}
        changed |= {"/dev": ""} if _has_other_devices(root, opened) else {}
        old = one.root if (one := noted(name)) and one.root else os.fstat(root)
        is_old = _rights(root, ".") == (old.st_mode, old.st_uid, old.st_gid, 0, 0)
        return changed if is_old else {"/": "", **changed}


def _content(name: str, folder: int) -> str:
    return _read(os.open(name, READ, dir_fd=folder), _MOST_NETWORK)[1].decode(errors="replace")


def _rights(folder: int, name: str) -> tuple[int, ...]:
    """Mode, owner, group, device, and how many attributes it has."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    attributes = os.listxattr(f"/proc/self/fd/{folder}/{name}", follow_symlinks=False)
    n = sum(one.startswith(ATTRIBUTES) for one in attributes)
    return found.st_mode, found.st_uid, found.st_gid, found.st_rdev, n


def drop_attributes(name: str, paths: Iterable[str]) -> None:
    """Remove attributes and access control lists of files and folders; images have none. Raises Unusual."""
    with _entered(name) as root:
        for path in paths:
            with contextlib.ExitStack() as opened, contextlib.suppress(OSError, Unusual):  # it has none, or is gone
                *above, last = _parts(path)
                folder = root
                for part in above:
                    folder = _opened(part, folder, opened)
                file = os.open(last, READ, dir_fd=folder)
                opened.callback(os.close, file)
                for kind in os.listxattr(file):
                    if kind.startswith(ATTRIBUTES):
                        os.removexattr(file, kind)


def check_users(name: str) -> None:
    """Raises Unusual when a list of users is no plain file, or too large."""
    with _entered(name) as root, contextlib.ExitStack() as opened:
        for path in USERS:
            above, last = _parts(path)
            folder = _opened(above, root, opened)
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(last, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_USERS:
                    raise Unusual(path)


def _has_other_devices(root: int, opened: contextlib.ExitStack) -> bool:
    folder = os.open("dev", FOLDER, dir_fd=root)
    opened.callback(os.close, folder)
    rights = {name: (stat.S_IFDIR | mode, 0) for name, mode in _FOLDERS.items()}
    rights |= {name: (stat.S_IFCHR | 0o666, os.makedev(*numbers)) for name, numbers in _DEVICES.items()}
    is_other = any(_rights(folder, name) != (mode, 0, 0, device, 0) for name, (mode, device) in rights.items())
    return is_other or any(os.readlink(link, dir_fd=folder) != f"/proc/self/{one}" for link, one in _STREAMS.items())


@contextlib.contextmanager
def _entered(name: str) -> Iterator[int]:
    """The container's root folder, as it was noted. Every other fault of the container's files is Unusual, too."""
    one = noted(name)
    if one is None or one.root is None:
        raise Unusual(name)
    with contextlib.ExitStack() as opened:
        try:
            process = opened.enter_context(process_folder(one.pid))
            root = os.open("root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
            opened.callback(os.close, root)
            # PIDs are used again; the agent can make PID 1 change its root
            if began(process) != one.began or not os.path.samestat(os.fstat(root), one.root):
                raise Unusual(name)
            yield root
        except OSError as error:
            raise Unusual(str(error)) from error


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not path.startswith("/") or ".." in parts or "\0" in path:
        raise Unusual(path)
    return parts


def _opened(part: str, above: int, opened: contextlib.ExitStack) -> int:
    """A folder below an open one, on the same device: what is mounted there is not the container's own."""
    folder = os.open(part, FOLDER, dir_fd=above)
    opened.callback(os.close, folder)
    if os.fstat(folder).st_dev != os.fstat(above).st_dev:
        raise Unusual(part)
    return folder


def _made(part: str, above: int, mode: int, opened: contextlib.ExitStack) -> int:
    """The same, made if missing."""
    try:
        os.mkdir(part, 0o700, dir_fd=above)
    except FileExistsError:
        return _opened(part, above, opened)
    folder = _opened(part, above, opened)
    os.fchown(folder, 0, 0)
    os.fchmod(folder, mode)
    return folder


def _read(descriptor: int, limit: int) -> tuple[os.stat_result, bytes]:
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
            raise Unusual
        return found, file.read(limit)
