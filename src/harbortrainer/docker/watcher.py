"""Watches a container's verification from outside: what is opened and written, and which processes run. Needs root.

A program of its own, without other modules of the package: `python -I -S watcher.py PID [KEPT,...]`, where PID is the
container's first process, as this machine numbers it, and KEPT are processes that are no policy's. It prints a line
when it watches, and a JSON object when its standard input ends.
"""

import contextlib
import ctypes
import json
import os
import select
import stat
import struct
import sys

CLASS_NOTIF, CLOEXEC, NONBLOCK, UNLIMITED_QUEUE, UNLIMITED_MARKS = 0, 1, 2, 0x10, 0x20
MARK_ADD, MARK_MOUNT = 1, 0x10
CLOSE_WRITE, OPEN, OPEN_EXEC, OVERFLOW = 8, 0x20, 0x1000, 0x4000
AT_FDCWD = -100
EVENT = struct.Struct("=IBBHQii")
MOST_PATHS, MOST_CHARACTERS = 20_000, 4_000_000  # that are kept; beyond that "overflow" is true
MOST_FILES, MOST_WRITES = 4096, 64  # of a process
MOST_READERS, MOST_PROGRAMS, MOST_WORD = 8, 4096, 1024  # of a file; of a container; bytes of a command line
OWN = ("/tests/", "/logs/verifier/")  # what verification alone writes
_NOT_MARKED = ("sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "devtmpfs")
_LISTENS = "0A"  # the state of a socket in /proc/net/tcp


class Watch:
    """fanotify marks on the container's mounts. `opened`: path -> place in the order of first opens."""

    def __init__(self, first: int, kept: "set[int]") -> None:
        self._first, self._kept = first, kept
        self.opened: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}  # by path: processes, in the order of their first opens
        self.programs: dict[int, dict[str, object]] = {}  # of readers
        self.written: set[str] = set()
        self.tampered: set[str] = set()  # what processes of the policy wrote or opened of verification's own
        self.overflow = False
        self._characters = 0
        self._libc = ctypes.CDLL(None, use_errno=True)
        flags = CLASS_NOTIF | CLOEXEC | NONBLOCK | UNLIMITED_QUEUE | UNLIMITED_MARKS
        self.descriptor: int = self._libc.fanotify_init(flags, os.O_RDONLY | os.O_LARGEFILE | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "fanotify_init")
        self._mark("/.")
        for mount, kind in self._mounts():
            if kind not in _NOT_MARKED:
                with contextlib.suppress(OSError):  # it was unmounted, or hides from this process
                    self._mark(mount)
        self.before = processes(first)

    def _mounts(self) -> "list[tuple[str, str]]":
        with open(f"/proc/{self._first}/mountinfo", errors="surrogateescape") as file:
            lines = [line.split() for line in file]
        return [(words[4], words[words.index("-") + 1]) for words in lines if words[4] != "/"]

    def _mark(self, path: str) -> None:
        name = os.fsencode(f"/proc/{self._first}/root{path}")
        events = ctypes.c_uint64(OPEN | OPEN_EXEC | CLOSE_WRITE)
        if self._libc.fanotify_mark(self.descriptor, MARK_ADD | MARK_MOUNT, events, AT_FDCWD, name) < 0:
            raise OSError(ctypes.get_errno(), path)

    def take(self) -> bool:
        """Take in the events that wait. Returns whether there were some."""
        try:
            data = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return False
        at = 0
        while at < len(data):
            length, _, _, _, mask, descriptor, pid = EVENT.unpack_from(data, at)
            at += length
            if mask & OVERFLOW:
                self.overflow = True
            elif descriptor >= 0:
                path = os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
                os.close(descriptor)
                self._note(path, mask, pid)
        return bool(data)

    def _note(self, path: str, mask: int, pid: int) -> None:
        own = path.startswith(OWN)
        if self._is_policys(pid):
            if own and mask & CLOSE_WRITE:
                self.tampered.add(path)
            elif path.startswith("/proc/") and path.endswith("/mem"):
                self.tampered.add("/proc/PID/mem")
            if not mask & CLOSE_WRITE:
                return
        elif not mask & CLOSE_WRITE:
            self._note_reader(path, pid)
        if path in (self.written if mask & CLOSE_WRITE else self.opened):
            return
        self._characters += len(path)
        if len(self.opened) + len(self.written) >= MOST_PATHS or self._characters > MOST_CHARACTERS:
            self.overflow = True
        elif mask & CLOSE_WRITE:
            self.written.add(path)
        else:
            self.opened[path] = len(self.opened)

    def _note_reader(self, path: str, pid: int) -> None:
        readers = self.readers.setdefault(path, []) if len(self.readers) < MOST_PATHS else []
        if pid not in readers and len(readers) < MOST_READERS:
            readers.append(pid)
        if pid in self.programs or len(self.programs) < MOST_PROGRAMS:
            with contextlib.suppress(OSError, IndexError):  # it has ended
                self.programs[pid] = _program(pid)

    def _is_policys(self, pid: int) -> bool:
        """Whether the process lived before verification, or descends from one that did and is no orphan."""
        asked = pid
        for _ in range(64):
            if pid in self._kept or pid <= 1:
                return False
            if pid in self.before:
                return pid != self._first or pid == asked
            if (status := _stat(pid)) is None:
                return False
            pid = int(status[1])
        return False

    def living(self) -> "list[dict[str, object]]":
        """The policy's processes: those that lived at the beginning. `ran`: one used a processor since."""
        after = processes(self._first)
        found = []
        for pid, one in self.before.items():
            now = after.get(pid)
            ran = now is None or now["began"] != one["began"] or now["ran"] != one["ran"]
            if pid in self._kept or (pid == self._first and not ran):  # the first only sleeps
                continue
            shown = now if now and now["began"] == one["began"] else one  # it may have begun to listen
            found.append(
                {"name": one["name"], "ports": shown["ports"], "ran": ran, "writes": one["writes"], "pid": one["pid"]}
            )
        return found


def processes(first: int) -> "dict[int, dict[str, object]]":
    """All of the container: when they began, nanoseconds that they ran, name, TCP ports, files that they write."""
    space = os.readlink(f"/proc/{first}/ns/pid")
    listening = _listening(first)
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        with contextlib.suppress(OSError, IndexError):
            if os.readlink(f"/proc/{pid}/ns/pid") == space and (status := _stat(pid)) is not None:
                sockets, writes = _open_files(pid)
                found[pid] = {
                    "began": status[19], "name": _text(f"/proc/{pid}/comm").strip(), "ran": _ran(pid),
                    "ports": sorted(listening[inode] for inode in sockets & listening.keys()), "writes": writes,
                    "pid": _inside(pid),
                }  # fmt: skip
    return found


def _program(pid: int) -> "dict[str, object]":
    """Its parent, working directory and the first words of its command line."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read(MOST_WORD).decode(errors="surrogateescape").split("\0")
    status = _stat(pid)
    return {"parent": int(status[1]) if status else 0, "cwd": os.readlink(f"/proc/{pid}/cwd"), "words": words[:3]}


def _inside(pid: int) -> int:
    """Its number in its own namespace."""
    lines = _text(f"/proc/{pid}/status").splitlines()
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), 0)


def _ran(pid: int) -> int:
    """Nanoseconds of all its threads."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            total += int(_text(f"/proc/{pid}/task/{thread}/schedstat").split()[0])
    return total


def _listening(first: int) -> "dict[str, int]":
    """Inode of the socket -> port."""
    found = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in _text(f"/proc/{first}/net/{table}").splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS:
                    found[words[9]] = int(words[1].rpartition(":")[2], 16)
    return found


def _open_files(pid: int) -> "tuple[set[str], list[str]]":
    """Inodes of its sockets, and paths that it has open for writing."""
    sockets, writes = set(), set()
    for name in os.listdir(f"/proc/{pid}/fd")[:MOST_FILES]:
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
            elif target.startswith("/") and os.lstat(f"/proc/{pid}/fd/{name}").st_mode & stat.S_IWUSR:
                writes.add(target)
    return sockets, sorted(writes)[:MOST_WRITES]


def _stat(pid: int) -> "list[str] | None":
    """The fields of /proc/PID/stat after the command's name: state, parent, …; None = it has ended."""
    try:
        return _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return None


def _text(name: str) -> str:
    with open(name, errors="replace") as file:
        return file.read()


def main() -> None:
    """Watch until standard input ends."""
    kept = {int(pid) for pid in sys.argv[2].split(",") if pid} if len(sys.argv) > 2 else set()
    watch = Watch(int(sys.argv[1]), kept)
    print("watching", flush=True)
    while True:
        ready, _, _ = select.select([watch.descriptor, sys.stdin], [], [])
        if watch.descriptor in ready:
            watch.take()
        if sys.stdin in ready:
            break
    while watch.take():
        pass
    shown = {
        "opened": watch.opened, "written": sorted(watch.written), "tampered": sorted(watch.tampered),
        "processes": watch.living(), "overflow": watch.overflow, "readers": watch.readers, "programs": watch.programs,
    }  # fmt: skip
    print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
