"""System calls by which a process reaches another one's memory or files, and signals, seen by tracefs. Needs root.

A part of watcher.py's program, with the standard library alone. A trace follows given threads and all that they start;
other processes of the machine are not recorded, but while there are traces, each of their system calls takes longer
(docs/threats.md).
"""

import contextlib
import ctypes
import fcntl
import itertools
import os
import re
import secrets
import threading
from collections.abc import Iterator
from typing import NamedTuple

from harbortrainer.docker.integrity import syscalls

PREFIX = "harbortrainer-"  # of the names of instances
BUFFER_KB = 1024  # for each processor
MOST_STRAYS, MOST_OWNED = 1024, 1 << 18
MOST_CALLS, MOST_FORKED = 256, 65_536  # that are kept; a quarter of the machine's numbers for processes at most
MOST_READS = 1024  # of two pages each, at a time; beyond that some are lost
# The kernel pads a program's name, in which anything may stand, to 16 bytes.
_HEAD = re.compile(rb"(?s)(?:^|\n).{16}-(\d+) +\[\d+\] [^:\n]*?\d+\.\d+: ")
_LOST = re.compile(rb"(?m)^CPU:\d+ \[LOST \d+ EVENTS\]\n")  # longer than a name
_CALL = re.compile(rb"sys_enter: NR (\d+) \(([0-9a-f]+), ([0-9a-f]+), ([0-9a-f]+),")
_FORK = re.compile(rb"(?s)sched_process_fork: .* child_pid=(\d+)$")
_SIGNAL = re.compile(rb"(?s)signal_generate: .* pid=(\d+) grp=\d+ res=\d+$")
_PORT = re.compile(rb"inet_sock_set_state: .* sport=(\d+) ")
_UDP = re.compile(rb"fib_table_lookup: .* proto 17 [\d.]+/(\d+) -> ")  # the sender's port
_OWNER = re.compile(rb"sys_(?:fcntl\(.* cmd: (?:0x)?([0-9a-f]+), arg: (?:0x)?([0-9a-f]+)|ioctl)")
_TRUNCATES, _RING = b"sys_open", b"io_uring_submit_req: "
# Not those of children that end, nor what is ignored, nor timers of others that ring while a followed process runs.
_SIGNALS = "sig != 17 && result != 1 && !(common_flags & 24)"
_LISTENS = "newstate == 10"  # TCP_LISTEN
# O_TRUNC or O_CREAT without O_WRONLY and O_RDWR: no write is told when it is closed.
_CUTS = "flags & 576 && !(flags & 3)"
_EPHEMERAL = 32_768
# With filters; those whose kernel has them.
_MORE = {
    "fib/fib_table_lookup": f"proto == 17 && sport > 0 && sport < {_EPHEMERAL}",
    "io_uring/io_uring_submit_req": "opcode == 38 || opcode == 56 || opcode == 57",  # symlinkat, to bind, to listen
    "syscalls/sys_enter_fcntl": f"cmd == {syscalls.OWN} || cmd == {syscalls.OWN_EX}",
    "syscalls/sys_enter_ioctl": "cmd == 0x8901 || cmd == 0x8902",  # the same
    "syscalls/sys_enter_open": _CUTS,
    "syscalls/sys_enter_openat": _CUTS,
    "syscalls/sys_enter_openat2": "",
}
_FSOPEN, _FSCONFIG, _FSMOUNT, _CREATE = 430, 431, 432, 6


class Call(NamedTuple):
    """A call. `target`: the thread that it reaches, as the container numbers it; 0 = not known."""

    name: str
    target: int


class Trace:
    """What is recorded of one container.

    `followed`: given threads; `forked`: what they have started; `lost`: some are missing there. `moved`: they may have
    renamed or linked something, `changed`: or made, deleted, given rights. `signalled`: others that they sent signals.
    `ports`: on which they began to listen, or from which they sent datagrams; `listened`: how often they began to
    listen, or bound a name, on something else. `links`: how often they made a symbolic link.
    """

    def __init__(self, traces: "Traces", machine: str) -> None:
        self._traces = traces
        self._calls, self._links = syscalls.CALLS[machine], syscalls.LINKS[machine]
        self._moves, self._changes = syscalls.MOVES[machine], syscalls.CHANGES[machine]
        self._listens, self._binds = syscalls.LISTEN[machine], syscalls.BIND[machine]
        self._opens = syscalls.SOCKET[machine]
        self.moved = self.changed = False
        self.links = 0
        self.followed: set[int] = set()
        self.forked: set[int] = set()
        self.signalled: set[int] = set()
        self.ports: set[str] = set()
        self._listened = self._bound = 0
        self._datagrams = False  # one of a Unix kind was made
        self.lost = False
        self._found: list[Call] = []

    @property
    def listened(self) -> int:
        return max(self._listened, self._bound)

    def follow(self, threads: set[int]) -> None:
        """Follow these threads too, and all that they start from now on. Raises OSError."""
        self._traces.follow(self, threads)
        self.followed |= threads

    def take(self) -> list[Call]:
        """Return the calls since the last time, at most MOST_CALLS; takes in `forked`, too."""
        with self._traces.lock:
            self._traces.read()
            found, self._found = self._found, []
        self.lost |= len(found) > MOST_CALLS
        return found[:MOST_CALLS]

    def note(self, event: bytes) -> None:
        """Take in an event of a followed thread that started none."""
        if signal := _SIGNAL.match(event):
            self._signal(int(signal[1]))
        elif port := _PORT.match(event):
            self.ports.add(f"tcp {int(port[1])}")
            self._listened -= 1
        elif port := _UDP.match(event):
            self.ports.add(f"udp {int(port[1])}")
        elif event.startswith(_RING):
            is_link = b"SYMLINK" in event
            self.links += is_link
            self._listened += not is_link
        elif event.startswith(_TRUNCATES):
            self.moved = True
        elif (call := _owned(event) or self._call(event)) and len(self._found) <= MOST_CALLS:
            self._found.append(call)

    def _signal(self, thread: int) -> None:
        if thread not in self.followed and thread not in self.forked and len(self.signalled) < MOST_CALLS:
            self.signalled.add(thread)

    def _call(self, event: bytes) -> Call | None:
        if not (found := _CALL.match(event)):
            return None
        number, (first, second, third) = int(found[1]), (int(one, 16) for one in found.groups()[1:])
        name = self._calls.get(number)
        if name == syscalls.LIMIT and not third:  # it only asks; and no rename of 32 bits, which has the same number
            return None
        self.moved |= number in self._moves
        self.changed |= number in self._changes
        self.links += number in self._links
        self._listened += number in self._listens or (number == syscalls.SOCKETS and first == syscalls.TO_LISTEN)
        self._datagrams |= number in self._opens and first == syscalls.UNIX and second & 15 == syscalls.DATAGRAM
        self._bound += number in self._binds and (third not in syscalls.OTHER_NAMES or self._datagrams)
        if name == syscalls.SIGNAL:
            return _owner(second, third)
        if name is None:
            return None
        if name == syscalls.FILE:
            return Call(name, 0)
        if name == syscalls.PTRACE and first not in (syscalls.ATTACH, syscalls.SEIZE):
            return None
        target = second if name == syscalls.PTRACE else first
        return Call(name, target) if 0 < target <= syscalls.MOST_PID else None


def _owned(event: bytes) -> Call | None:
    if not (found := _OWNER.match(event)):
        return None
    return _owner(int(found[1], 16), int(found[2], 16)) if found[1] else Call(syscalls.SIGNAL, 0)


def _owner(command: int, whom: int) -> Call | None:
    """Whom the kernel is to signal: a process, or the negative number of a group; 0 = nobody."""
    number = (whom + (1 << 31)) % (1 << 32) - (1 << 31)  # the lower 32 bits
    if command == syscalls.OWN:
        return Call(syscalls.SIGNAL, abs(number)) if number else None
    return Call(syscalls.SIGNAL, 0) if command == syscalls.OWN_EX else None


class Traces:
    """An instance of the tracer, which all containers share: an event belongs to the one whose thread makes it.

    The kernel makes changes of all its instances one after another, and each takes 50 ms and more: several instances
    would take several times as long. `why`: containers cannot be traced; "" = they can.
    """

    def __init__(self) -> None:
        self.why, self._machine = "", os.uname().machine
        self.lock, self._writing = threading.Lock(), threading.Lock()  # the second is taken first
        self._waiting: set[int] = set()  # threads that are to be followed
        self._lent: set[Trace] = set()
        self._recording = False
        self._owners: dict[int, Trace | None] = {}  # None: of a container that is not watched any more
        self._strays: dict[int, list[bytes]] = {}  # of threads whose start was written at the same time
        self._n_strays = 0
        self._undo = contextlib.ExitStack()
        if self._machine not in syscalls.CALLS:
            self.why = f"a processor of the kind {self._machine}"
            return
        try:
            with self._undo:
                self._begin()
                self._undo = self._undo.pop_all()
        except OSError as error:
            self.why = f"tracefs: {error}"

    def _begin(self) -> None:
        mount = _own_mount()
        self._undo.callback(os.close, mount)
        instances = f"/proc/self/fd/{mount}/instances"
        with open("/proc/sys/kernel/pid_max") as file:
            self._most = min(MOST_FORKED, int(file.read()) // 4)
        self._folder = f"{instances}/{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        with _alone(instances):
            _remove_stale(instances)
            os.mkdir(self._folder)
            self._undo.callback(os.rmdir, self._folder)
            # Nobody can remove the instance while this is open.
            self._pipe = os.open(f"{self._folder}/trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._undo.callback(os.close, self._pipe)
        self._write("buffer_size_kb", str(BUFFER_KB))
        self._write("trace_clock", "global")  # a thread's start comes before what it does
        self._write("options/event-fork", "1")
        self._events = self._filtered(self._machine)
        for event, kept in self._events.items():
            if kept:
                self._write(f"events/{event}/filter", kept)

    def lend(self) -> Trace | None:
        """Lend a trace; None where containers cannot be traced."""
        if self.why:
            return None
        trace = Trace(self, self._machine)
        with self.lock:
            self._lent.add(trace)
        return trace

    def _filtered(self, machine: str) -> dict[str, str]:
        """Event -> its filter; "" = none."""
        numbers = {*syscalls.CALLS[machine], *syscalls.MOVES[machine], *syscalls.CHANGES[machine], syscalls.SOCKETS}
        numbers |= {*syscalls.LISTEN[machine], *syscalls.BIND[machine], *syscalls.SOCKET[machine]}
        more = {event: kept for event, kept in _MORE.items() if os.path.isdir(f"{self._folder}/events/{event}")}
        return {
            "raw_syscalls/sys_enter": " || ".join(f"id == {number}" for number in sorted(numbers)),
            "sched/sched_process_fork": "", "signal/signal_generate": _SIGNALS,
            "sock/inet_sock_set_state": _LISTENS,
        } | more  # fmt: skip

    def follow(self, trace: Trace, threads: set[int]) -> None:
        """Record what these threads and all that they start do, by one write for all that wait. Raises OSError."""
        with self.lock:
            self._owners |= dict.fromkeys(threads, trace)
            self._waiting |= threads
        with self._writing:
            with self.lock:
                waiting, self._waiting = self._waiting, set[int]()
            if waiting:
                self._record(waiting)

    def _record(self, threads: set[int]) -> None:
        """The caller has `_writing`. What fails is lost to all that are lent, since it was for several."""
        try:
            self._write("set_event_pid", " ".join(map(str, threads)), os.O_APPEND)
            if not self._recording:
                for event in self._events:
                    self._write(f"events/{event}/enable", "1")
                self._recording = True
        except OSError:
            with self.lock:
                self._lose()
            raise

    def read(self) -> None:
        """Give each trace its events. The caller has the lock."""
        for number, page in enumerate(self._pages()):
            data, lost = _LOST.subn(b"", page)
            if lost or number == MOST_READS:
                self._lose()
            heads = [*_HEAD.finditer(data)]
            for head, after in itertools.zip_longest(heads, heads[1:]):
                end = after.start() if after else len(data) - 1  # without its end
                self._note(int(head[1]), data[head.end() : end])
            if number == MOST_READS:
                return

    def _pages(self) -> Iterator[bytes]:
        """Events that wait, each page whole."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._pipe, 1 << 16):
                yield data

    def _note(self, thread: int, event: bytes) -> None:
        if thread not in self._owners:
            self._n_strays += 1
            if self._n_strays > MOST_STRAYS:
                self._strays.clear()
                self._n_strays = 1
                self._lose()
            self._strays.setdefault(thread, []).append(event)
        elif fork := _FORK.match(event):
            self._start(int(fork[1]), self._owners[thread])
        elif owner := self._owners[thread]:
            if event.startswith(b"sched_process_fork: "):  # cut off
                owner.lost = True
            else:
                owner.note(event)

    def _start(self, thread: int, owner: Trace | None) -> None:
        self._owners[thread] = owner
        if owner is not None and len(owner.forked) < self._most:
            owner.forked.add(thread)
        elif owner is not None:
            owner.lost = True
        if len(self._owners) > MOST_OWNED:
            self._owners = {
                one: trace for one, trace in self._owners.items() if trace or os.path.exists(f"/proc/{one}")
            }
        strays = self._strays.pop(thread, [])
        self._n_strays -= len(strays)
        for event in strays:
            self._note(thread, event)

    def _lose(self) -> None:
        for trace in self._lent:
            trace.lost = True

    def give_back(self, trace: Trace) -> None:
        """Give what its threads do from now on to nobody; record nothing any more where nothing else is lent."""
        with self.lock:
            self._lent.discard(trace)
            # a number may be another's thread by now
            own = (one for one in (*trace.followed, *trace.forked) if self._owners.get(one) is trace)
            self._owners |= dict.fromkeys(own, None)
            if self._lent:
                return
        with self._writing, self.lock, contextlib.suppress(OSError):
            if not self._lent and self._recording:
                for event in self._events:
                    self._write(f"events/{event}/enable", "0")
                self._write("set_event_pid", "\n")
                for _ in self._pages():
                    pass
                self._recording = False
                self._owners.clear()
                self._strays.clear()
                self._n_strays = 0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._undo.close()

    def _write(self, name: str, text: str, mode: int = os.O_TRUNC) -> None:
        file = os.open(f"{self._folder}/{name}", os.O_WRONLY | os.O_CLOEXEC | mode)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Let no other program of ours in here meanwhile: to it, an instance that is just being made is stale."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(folder: str) -> None:
    """Instances of programs that were killed; those of living ones are busy."""
    for name in os.listdir(folder):
        if name.startswith(PREFIX):
            with contextlib.suppress(OSError):
                os.rmdir(f"{folder}/{name}")


def _own_mount() -> int:
    """Mount tracefs on a descriptor alone: it stays when somebody unmounts the machine's. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: object) -> int:
        result: int = libc.syscall(number, *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    context = call(_FSOPEN, b"tracefs", 1)
    try:
        call(_FSCONFIG, context, _CREATE, None, None, 0)
        return call(_FSMOUNT, context, 1, 0)
    finally:
        os.close(context)
