"""fanotify marks on a container's mounts and on the folders that verification alone writes. Needs root.

A part of watcher.py's program, with the standard library alone.
"""

import contextlib
import ctypes
import itertools
import os
import stat
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from harbortrainer.docker.integrity.living import OWN

CLOSE_WRITE, OPEN, OPEN_EXEC, OVERFLOW = 8, 0x20, 0x1000, 0x4000
_MOVED_TO, _CREATED = 0x80, 0x100
MOVED = 0x800
ITSELF = 0x400 | MOVED  # deleted, moved
# Moved from, moved to, created, deleted.
CHANGED = 0x40 | _MOVED_TO | _CREATED | 0x200
MOST_BELOW = 20_000  # entries of a folder, and below it
OWN_FOLDERS = "/tests or /logs/verifier"  # the path of events of CHANGED and ITSELF
PAUSE = 10  # between two looks for new folders, in times of what one took
AT_ONCE = 512  # events of one turn, each of which opens a file
_CLOEXEC, _NONBLOCK, _UNLIMITED_MARKS, _REPORT_FID, _FD_ERROR = 1, 2, 0x20, 0x200, 0x2000
_ADD, _REMOVE, _MOUNT, _IGNORE, _ON_FOLDER = 1, 2, 0x10, 0x20 | 0x40, 0x40000000  # also once it was written
_NO_LINK, _FOLDER_ALONE = 4, 8
_AT_FDCWD = -100
_EVENT = struct.Struct("=IBBHQii")
# A pipe is opened as all else is: without O_NONBLOCK that would wait for its other end.
_OPENED = os.O_RDONLY | os.O_NONBLOCK | os.O_LARGEFILE | os.O_CLOEXEC
_NOT_MARKED = ("sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "devtmpfs")
_DELETED = " (deleted)"


class Event(NamedTuple):
    """An event. `path`: "" = not known, by `error`. `mask`: OVERFLOW = some were lost. `file`: open until the next
    one.
    """

    path: str
    mask: int
    pid: int = 0
    error: int = 0
    file: int = -1


class Marks:
    """The kernel queues what is opened, and closed after it was open for writing, until `events` takes it.

    Also what is renamed, linked, made and deleted in and below OWN, where the kernel reports that in a container (6.6);
    the folders above are only watched for being moved.
    """

    def __init__(self, first: int) -> None:
        """`first`: the container's first process, as this machine numbers it. Raises OSError."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._root = f"/proc/{first}/root"
        self._own = -1  # the group of events of OWN's folders
        self._grown = False  # new ones are in them
        self._look_at = 0.0
        self._marked: list[str] = []
        self._upper = ""  # overlayfs' folder of what the container wrote; "" = it cannot be seen from here
        self._beside: list[str] = []  # mounts that are not in it
        with contextlib.ExitStack() as undo:
            flags = _CLOEXEC | _NONBLOCK | _UNLIMITED_MARKS
            try:
                self._mounts, self._most = self._init(flags | _FD_ERROR), AT_ONCE
            except (
                OSError
            ):  # before Linux 6.13 a file that cannot be opened ends a read, without a word if it is not alone
                self._mounts, self._most = self._init(flags), 1
            undo.callback(os.close, self._mounts)
            self._mark_mount("/.")
            for mount, kind, options in _mounts(first):
                if mount == "/":
                    self._upper = _upper(options)
                    continue
                self._beside.append(f"{mount}/")
                if kind not in _NOT_MARKED:
                    with contextlib.suppress(OSError):  # it was unmounted, or hides from this process
                        self._mark_mount(mount)
            self._own = self._init(flags | _REPORT_FID)
            undo.callback(os.close, self._own)
            for folder in OWN:
                with contextlib.suppress(OSError):  # this kernel does not report it
                    self._mark_folder(folder.rstrip("/"))
            self._undo = undo.pop_all()

    def _init(self, flags: int) -> int:
        descriptor: int = self._libc.fanotify_init(flags, _OPENED)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), f"fanotify_init: {os.strerror(ctypes.get_errno())}")
        return descriptor

    def _mark_mount(self, path: str) -> None:
        lists = _ON_FOLDER if path == "/proc" else 0  # those of processes
        self._mark(self._mounts, path, OPEN | OPEN_EXEC | CLOSE_WRITE | lists, _ADD | _MOUNT)
        self._marked.append(path)

    def _mark(self, group: int, path: str, events: int, how: int = _ADD) -> None:
        name = os.fsencode(self._root + path)
        if self._libc.fanotify_mark(group, how, ctypes.c_uint64(events), _AT_FDCWD, name) < 0:
            raise OSError(ctypes.get_errno(), f"fanotify_mark {path}: {os.strerror(ctypes.get_errno())}")

    def _mark_folder(self, folder: str) -> None:
        """Mark the folder and all folders in it, and the one above. Raises OSError where the kernel reports nothing."""
        self._mark_below(folder)
        if above := os.path.dirname(folder).rstrip("/"):
            self._mark(self._own, above, ITSELF | _ON_FOLDER, _ADD | _NO_LINK | _FOLDER_ALONE)

    def _mark_below(self, folder: str) -> None:
        events, how = CHANGED | _ON_FOLDER, _ADD | _NO_LINK | _FOLDER_ALONE
        self._mark(self._own, folder, events | ITSELF, how)
        for path, is_folder in below(self._root, folder):
            if is_folder:
                with contextlib.suppress(OSError):  # it was removed just now
                    self._mark(self._own, path, events, how)

    def _mark_new(self) -> None:
        """Mark new folders. A verification may make thousands: looking for them takes a tenth of the time at most."""
        began = time.monotonic()
        if not self._grown or began < self._look_at:
            return
        for folder in OWN:
            with contextlib.suppress(OSError):
                self._mark_below(folder.rstrip("/"))
        self._grown = False
        self._look_at = began + PAUSE * (time.monotonic() - began)

    def leave_file(self, file: int) -> None:
        """Tell no more opens of this file, if it has one name alone."""
        if os.fstat(file).st_nlink == 1:
            self._libc.fanotify_mark(self._mounts, _ADD | _IGNORE, ctypes.c_uint64(OPEN | OPEN_EXEC), file, None)

    def is_of_image(self, path: str) -> bool:
        """Return whether the container has not written what is there; False where that cannot be seen."""
        if not self._upper or path.endswith(_DELETED) or any(f"{path}/".startswith(one) for one in self._beside):
            return False
        return not os.path.lexists(self._upper + path)

    def leave_opens(self) -> None:
        """Watch only what is written from now on."""
        for path in self._marked:
            with contextlib.suppress(OSError):
                self._mark(self._mounts, path, OPEN | OPEN_EXEC, _REMOVE | _MOUNT)

    @property
    def descriptors(self) -> list[int]:
        """They can be read when there are events."""
        return [self._mounts, self._own]

    def close(self) -> None:
        self._undo.close()

    def events(self) -> Iterator[Event]:
        """Yield those that wait, about AT_ONCE."""
        changed = list(self._read(self._own, 1 << 14))
        self._grown |= any(mask & (_MOVED_TO | _CREATED) and mask & _ON_FOLDER for mask, _, _ in changed)
        self._mark_new()
        yield from (Event(OWN_FOLDERS, mask, pid) for mask, _, pid in changed)
        for _ in range(AT_ONCE // self._most):
            before = True
            for mask, descriptor, pid in self._read(self._mounts, self._most * _EVENT.size):
                before = False
                try:
                    yield _event(mask, descriptor, pid)
                finally:
                    if descriptor >= 0:
                        os.close(descriptor)
            if before:
                break

    def _read(self, group: int, size: int) -> Iterator[tuple[int, int, int]]:
        try:
            data = os.read(group, size)
        except BlockingIOError:
            return
        except OSError as error:  # an event whose file cannot be opened
            yield 0, -(error.errno or 1), 0
            return
        at = 0
        while at < len(data):
            length, _, _, _, mask, descriptor, pid = _EVENT.unpack_from(data, at)
            yield mask, descriptor, pid
            at += length


def _event(mask: int, descriptor: int, pid: int) -> Event:
    if mask & OVERFLOW:
        return Event("", OVERFLOW)
    if descriptor < 0:
        return Event("", mask, pid, -descriptor)
    try:
        return Event(os.readlink(f"/proc/self/fd/{descriptor}"), mask, pid, file=descriptor)
    except OSError as error:  # a path of more than 4,096 characters
        return Event("", mask, pid, error.errno or 1)


def below(root: str, folder: str) -> Iterator[tuple[str, bool]]:
    """Yield paths in a container's folder and below it, at most MOST_BELOW, and whether each is a folder.

    Follows no link.

    The path `folder` itself where it is missing, or no folder.
    """
    try:
        is_folder = stat.S_ISDIR(os.lstat(root + folder).st_mode)
    except OSError:
        is_folder = False
    if not is_folder:
        yield folder, False
        return
    waiting, left = [folder], MOST_BELOW
    while waiting and left:
        with contextlib.suppress(OSError), os.scandir(root + (above := waiting.pop())) as entries:
            for entry in itertools.islice(entries, left):
                left -= 1
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder:
                    waiting.append(f"{above}/{entry.name}")
                yield f"{above}/{entry.name}", is_folder


def names(path: str) -> tuple[str, ...]:
    """Return what the kernel's path may mean: it marks a deleted file, and a file's own name may end so."""
    return (path, path.removesuffix(_DELETED)) if path.endswith(_DELETED) else (path,)


def _mounts(first: int) -> list[tuple[str, str, str]]:
    """Mount points of the container, with their file systems and the options of these."""
    with open(f"/proc/{first}/mountinfo", errors="surrogateescape") as file:
        lines = [line.split() for line in file]
    return [(words[4], words[words.index("-") + 1], words[-1]) for words in lines]


def _upper(options: str) -> str:
    found = [one.removeprefix("upperdir=") for one in options.split(",") if one.startswith("upperdir=/")]
    return found[0] if found and os.path.isdir(found[0]) else ""
