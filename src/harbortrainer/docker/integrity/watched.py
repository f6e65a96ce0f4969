"""A container's verification, watched: what is opened and written, and what the policy's processes do to it.

A part of watcher.py's program, which needs root and has the standard library alone.
"""

import contextlib
import errno
import itertools
import os
import re
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from harbortrainer.docker.integrity.kernel_objects import in_dev, objects_of, refused
from harbortrainer.docker.integrity.living import (
    ENDED,
    OWN,
    RING,
    TESTS,
    Look,
    Process,
    fields_of,
    inner_of,
    is_system,
    living,
    mapped,
    pids_of,
    settled,
    threads_of,
)
from harbortrainer.docker.integrity.marks import (
    CHANGED,
    CLOSE_WRITE,
    ITSELF,
    MOVED,
    OPEN,
    OPEN_EXEC,
    OVERFLOW,
    Event,
    Marks,
    below,
    names,
)
from harbortrainer.docker.integrity.own_files import OwnFiles, above
from harbortrainer.docker.integrity.programs import Programs
from harbortrainer.docker.integrity.syscalls import SIGNAL
from harbortrainer.docker.integrity.traces import Trace, Traces

MOST_PATHS, MOST_CHARACTERS = 20_000, 4_000_000  # that are kept; beyond that "overflow" is true
MOST_TAMPERED, MOST_READERS = 64, 32  # the second: of a file
MOST_LATE = 4096
SHARED = "/dev/shm"
DRAIN_SEC = 5.0  # for events that wait when verification has ended
ROUNDS = 5  # until every process of the policy is followed
_MEMORY = re.compile(r"/proc/(\d+)/(?:task/\d+/)?mem")
_OF_PROCESS = re.compile(r"/proc/(\d+)/")
_MEMORY_NAME, _PROCESS_NAME = "/proc/PID/mem", "/proc/PID"
ENDED_SOCKET = "unix (ended)"
# Of a file of an ended process in /proc, or of a device: no file of a layer.
_HARMLESS = (errno.ESRCH, errno.EINVAL, errno.ENXIO, errno.ENODEV)


class Watch:
    """A container's verification. `readers`: path -> processes that opened it, the first ones, in the order of first
    opens; without those of the policy. `programs`: what readers ran.

    `tampered`: what processes of the policy did to what is verification's own. `overflow`: what was opened is not
    known. `unseen`: they did more than was seen. `own`: what is in OWN before verification writes there; `late`: files
    elsewhere that processes of the policy wrote, in /dev also before; `made`: inodes that others wrote.
    `lost`: the kernel lost events.
    """

    def __init__(self, container: Mapping[str, Any], traces: Traces) -> None:
        self._first, self._kept, self._traces = container["pid"], frozenset[int](container["kept"]), traces
        self.lock = threading.Lock()
        self._shared = f"/proc/{self._first}/root{SHARED}"
        self.readers: dict[str, list[int]] = {}
        self.programs = Programs(self._first)
        self.written: set[str] = set()
        self.late: set[str] = set()
        self.opened: set[tuple[str, int]] = set()  # by verification, with inodes, while the policy is traced
        self.made: set[int] = set()
        self.own: list[str] = []
        self._own_files = OwnFiles(self._first)
        self._peeked: set[tuple[int, int]] = set()  # files that the policy opened, by device and inode
        self._tests: dict[str, tuple[int, int]] = {}  # those of TESTS, which others opened
        self._uploads: set[int] = set()  # processes that wrote there
        self.tampered: set[str] = set()
        self.overflow = self.unseen = self.lost = self.ended = False
        self._characters = 0
        self._judged: dict[int, bool] = {}
        self._inner: dict[int, int] = {}
        self.trace: Trace | None = None
        self.before: dict[int, Process] = {}
        self.marks = Marks(self._first)
        try:
            self._begin(container)
        except OSError:
            self.close()
            raise

    def _begin(self, container: Mapping[str, Any]) -> None:
        look = settled(container)
        self.before, self.unseen = look.processes, not look.complete
        self.left, self.objects = set(in_dev(self._first)), [] if self._kept else objects_of(self._first)
        self.late |= self.left
        self._refused = refused(self._first)
        for folder in OWN:
            self.own += [path for path, _ in below(f"/proc/{self._first}/root", folder.rstrip("/"))]
        if self.before.keys() <= {self._first}:
            return
        if self._traces.why:  # the trainer was told
            return
        self.trace = self._traces.lend()
        if self.trace is None or not self._follow(self.trace):
            self.unseen = True

    def _follow(self, trace: Trace) -> bool:
        """Whether all processes of the policy are followed, with what they start."""
        for _ in range(ROUNDS):
            pids = [pid for pid in pids_of(self._first) if pid not in self._kept]
            trace.take()
            threads = {thread for pid in pids for thread in threads_of(pid)} - trace.followed - trace.forked
            if not threads:
                return not trace.lost
            look = Look(self._first, set(pids) - self.before.keys() - trace.forked)
            self.unseen |= not look.complete
            self.before |= {pid: one for pid, one in look.processes.items() if pid != ENDED}
            trace.follow(threads)
        return False

    def take(self) -> bool:
        """Take in the events that wait, or a part of them. Returns whether there were some."""
        found = False
        for event in self.marks.events():
            found = True
            if event.mask & OVERFLOW:
                self._lose()
            elif event.error:
                self._not_opened(event)
            elif event.mask & (CHANGED | ITSELF):
                self._tamper(event.path, event.pid)
                self._own_files.changed |= {event.path} if event.mask & MOVED else set()
            else:
                self._note(event)
        self.programs.take_loading()
        return found

    def take_calls(self) -> None:
        if self.trace is not None:
            self._note_full()
            for call in self.trace.take():
                if call.name not in self.tampered and not self._is_policys_thread(call.target):
                    self.tampered.add(call.name)
            self.unseen |= self.trace.lost
            if not self.trace.lost and self.trace.signalled - self._kept:
                self.tampered.add(SIGNAL)

    def _note(self, event: Event) -> None:
        """The kernel makes one event of several ones of a process and file."""
        if event.mask & CLOSE_WRITE:
            self._note_write(event)
            if (found := _OF_PROCESS.match(event.path)) and self._is_verifications(int(found[1])):
                self._tamper(_PROCESS_NAME, event.pid)
        if event.path.endswith("/mem") and (found := _MEMORY.fullmatch(event.path)):
            self._note_memory(int(found[1]), event.pid)
        opens = bool(event.mask & OPEN) and not self.overflow
        if opens and self._opens_for_policy(event.pid):
            opens = False
            self._peeked.add(_file_of(event))
            self.unseen |= len(self._peeked) > MOST_PATHS
        for path in () if self.overflow else names(event.path):
            if path not in self.readers and path not in self.written:
                self._characters += len(path)
            if event.mask & CLOSE_WRITE:
                self.written.add(path)
            if opens:
                self._note_reader(path, event)
        if opens:
            self.programs.note(event)
        if len(self.readers) + len(self.written) > MOST_PATHS or self._characters > MOST_CHARACTERS:
            self._flooded()

    def _note_write(self, event: Event) -> None:
        self._own_files.note_write(event)
        if event.path.startswith(OWN):
            self._tamper(event.path, event.pid)
            if event.path.startswith(TESTS):
                self._uploads.add(event.pid)
        elif self._writes_for_policy(event.pid):
            self.late.update(names(event.path))
            self._note_full()
        elif event.file >= 0:
            self.made.add(os.fstat(event.file).st_ino)
        if len(self.late) > MOST_LATE:
            self._flooded()

    def _note_full(self) -> None:
        """Nothing can be written in SHARED any more, and somebody else is there."""
        with contextlib.suppress(OSError):
            room = os.statvfs(self._shared)
            if room.f_blocks and not room.f_bavail and len(self.tampered) < MOST_TAMPERED:
                self.tampered.add(SHARED)

    def _note_reader(self, path: str, event: Event) -> None:
        readers = self.readers.setdefault(path, [])
        if event.pid not in readers and len(readers) < MOST_READERS:
            readers.append(event.pid)
        if path.startswith("/proc/"):
            return
        if self.trace is not None:
            device, inode = _file_of(event)
            self.opened.add((path, inode))
            if path.startswith(TESTS):
                self._tests[path] = device, inode
        if len(readers) == MOST_READERS or self._is_library(path, event):
            self.marks.leave_file(event.file)

    def _is_library(self, path: str, event: Event) -> bool:
        """Whether it does not matter who reads a file, too: one of the image where programs of every kind read.

        The first that a program opens tells that it is loaded.
        """
        if event.mask & OPEN_EXEC or event.pid in self.programs.new or not is_system(path):
            return False
        return self.marks.is_of_image(path)

    def _note_memory(self, inner: int, pid: int) -> None:
        """`inner`: the process whose memory is opened, as the container numbers it."""
        if _MEMORY_NAME not in self.tampered and not self._is_policys_thread(inner):
            self._tamper(_MEMORY_NAME, pid)
        if inner in map(inner_of, itertools.islice(above(pid), 1, None)):
            self._own_files.changed.add(_MEMORY_NAME)

    def _not_opened(self, event: Event) -> None:
        """The file of an event could not be opened here."""
        if event.error == errno.ESRCH and event.mask & CLOSE_WRITE:  # the memory of a process that has ended
            self._tamper(_MEMORY_NAME, event.pid)
        elif event.error not in _HARMLESS:
            self._flooded()

    def _lose(self) -> None:
        self._flooded()
        self.lost = self.unseen = True

    def _flooded(self) -> None:
        if not self.overflow:
            self.overflow = True
            self.marks.leave_opens()
        for known in (self.readers, self.programs, self.written, self.late, self.made, self.opened):
            known.clear()

    def _tamper(self, what: str, pid: int) -> None:
        if what not in self.tampered and len(self.tampered) < MOST_TAMPERED and self._is_policys(pid):
            self.tampered.add(what)

    def _opens_for_policy(self, pid: int) -> bool:
        """As `_is_policys`; False, too, where numbers of processes may have come round."""
        if self.trace is not None and self.trace.lost:
            return False
        if pid not in self._judged:
            self._judged[pid] = self._is_policys(pid)
        return self._judged[pid]

    def _writes_for_policy(self, pid: int) -> bool:
        return self._judged[pid] if pid in self._judged else self._is_policys(pid)

    def _is_policys(self, pid: int) -> bool:
        """Whether the process lived before verification, or was started by one that did."""
        if (known := self.before.get(pid)) is not None:
            fields = fields_of(pid)
            return fields is None or fields[19] == known.began
        if self.before.keys() <= {self._first}:
            return False
        self.take_calls()
        return pid in self.trace.forked if self.trace else self._descends(pid)

    def _descends(self, pid: int) -> bool:
        """The same where nothing is traced: orphans and what has ended cannot be told."""
        for _ in range(64):
            if (fields := fields_of(pid)) is None or pid in self._kept:
                return False
            pid = int(fields[1])
            if pid in self.before:
                return pid != self._first
        return False

    def _is_verifications(self, inner: int) -> bool:
        """Whether the container's number is that of a living process of verification."""
        others = {*self.before, *self._kept, *(self.trace.forked if self.trace else ())}
        return self.trace is not None and any(inner_of(pid) == inner for pid in {*pids_of(self._first)} - others)

    def _is_policys_thread(self, inner: int) -> bool:
        """Whether the container's number for a thread is one of the policy's."""
        if not inner:
            return False
        threads = {thread for pid in self.before if pid != self._first for thread in threads_of(pid)}
        for thread in threads | (self.trace.forked if self.trace else set()):
            if thread not in self._inner:
                self._inner[thread] = inner_of(thread)
        return inner in self._inner.values()

    def end(self, tests: Collection[str], since: float) -> dict[str, object]:
        """Return what happened; of `tests`, what was changed `since`. Call `close` afterwards."""
        with self.lock:
            self.ended = True
            give_up = time.monotonic() + DRAIN_SEC
            while not self.lost and self.take():
                if time.monotonic() > give_up:
                    self._lose()
            self.take_calls()
            forked = self.trace.forked if self.trace else set[int]()
            alive = set(self.before) | (forked.intersection(pids_of(self._first)) if forked else set())
            look = Look(self._first, alive)
            is_short = refused(self._first) > self._refused  # perhaps what verification needed
            self.unseen |= not look.complete
            for pid, one in look.processes.items():
                self._holds(pid, one)
            peeked = (path for path, file in self._tests.items() if file in self._peeked)
            self.tampered |= {path for path in peeked if {*self.readers.get(path, ())} - self._uploads}
            self.late |= set(in_dev(self._first)) - self.written if self.trace else set()
            processes = living(self._first, self.before, look.processes, all_hold=is_short)
            self.take_calls()  # a processor that wrote when it was read shows the rest a moment later
            moved, changed = (self.trace.moved, self.trace.changed) if self.trace else (False, False)
            return {
                "readers": self.readers, "programs": self.programs.found(), "written": sorted(self.written),
                "tampered": sorted(self.tampered), "processes": [*processes, *self.objects],
                "overflow": self.overflow, "unseen": self.unseen, "late": sorted(self.late), "moved": moved,
                "changed": moved or changed, "made": sorted(self.made) if moved else [],
                "sockets": self._sockets(look.processes), "links": self.trace.links if self.trace else 0,
                "passed": sorted(self._passed()) if moved else [], "left": sorted(self.left),
                "writers": self._own_files.writers(tests, since, self.readers),
                "altered": sorted(self._own_files.changes(tests, since, self._held(alive)))[:MOST_TAMPERED],
            }  # fmt: skip

    def _held(self, known: Collection[int]) -> set[str]:
        """What programs that verification has left can still write. `known`: others."""
        left = Look(self._first, {*pids_of(self._first)}.difference(known, self._kept)).processes
        return {path for pid, one in left.items() for path in (*one.writes, *mapped(pid)[0])}

    def _passed(self) -> set[str]:
        """Paths at which verification opened what it had not made, and at which nothing is any more."""
        found = {path for path, inode in self.opened if inode not in self.made}
        return {path for path in found if not os.path.lexists(f"/proc/{self._first}/root{path}")}

    def _sockets(self, after: Mapping[int, Process]) -> list[str]:
        """On which the policy's processes began to listen."""
        names = [{name for one in look.values() for name in one.sockets} for look in (self.before, after)]
        new = sorted(f"unix {name}" for name in names[1] - names[0])
        if self.trace is None:
            return new
        ended = [ENDED_SOCKET] if self.trace.listened > len(new) else []
        return [*sorted(self.trace.ports)[:MOST_TAMPERED], *new[:MOST_TAMPERED], *ended]

    def _holds(self, pid: int, process: Process) -> None:
        """It may still write what is verification's own, so that no event tells."""
        paths, are_all = mapped(pid)
        self.unseen |= not are_all
        for path in {*process.writes, *paths}:
            if path == RING and self.trace is not None:
                self.trace.moved = True
            self._note(Event(path, CLOSE_WRITE, pid))

    def close(self) -> None:
        self.marks.close()
        if (trace := self.trace) is not None:
            self.trace = None
            self._traces.give_back(trace)


def _file_of(event: Event) -> tuple[int, int]:
    found = os.fstat(event.file)
    return found.st_dev, found.st_ino
