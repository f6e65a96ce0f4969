"""The processes of a container, seen from its machine through /proc: how long they ran, what they listen on and write.

A part of watcher.py's program, which needs root and has the standard library alone. The policy makes what is read here:
nothing is read without a limit.
"""

import contextlib
import ctypes
import itertools
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

MOST_PROCESSES, MOST_THREADS, MOST_FILES = 4096, 8192, 32_768  # of one look; beyond that it is not complete
MOST_WRITES = 1024  # of a process; beyond that its look is not complete, either
MOST_BYTES, MOST_WORDS = 4 * 1024 * 1024, 1024  # of a file in /proc; of a command line
MOST_ARGUMENTS = 32
TESTS = "/tests/"
OWN = (TESTS, "/logs/verifier/")  # what verification alone writes
RING = "anon_inode:[io_uring]"  # the kernel may act for who has mapped it, without a call
_SYSTEM = re.compile(r"/(?:usr|bin|sbin|lib\w*|etc|boot)(?:/.*)?", re.DOTALL)  # every program reads there
_OF_USER = re.compile(r"(?:/root|/home/[^/]+)/\.[^/]+(?:/.*)?", re.DOTALL)
_AT_ONCE = 1 << 16
_GROUPS = "/sys/fs/cgroup"
# Of sockets that listen, in /proc/net; of raw ones none does.
_STATES = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07", "raw": "", "raw6": "", "icmp": "", "icmp6": ""}
_ACCEPTS, _DATAGRAM = 0x10000, "0002"  # a flag, and a type, in /proc/net/unix
# What containers have in /dev beside memory and queues, which others fill.
DEVICES = "null|zero|full|random|urandom|tty|console|ptmx|pts|core|fd|stdin|stdout|stderr"
# Of a socket or a ring in fdinfo: open files that no process lists, on their way through it or registered with it.
_UNLISTED = re.compile(r"^(?:scm_fds|UserFiles):\s*[1-9]", re.MULTILINE)
_KCMP, _FILES = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine, -1), 2
_libc = ctypes.CDLL(None)


class Process(NamedTuple):
    """A process. `began`: in ticks since boot. `inner`: its number in the container. `ran`: nanoseconds of all its
    threads; -1 =
    not known. `ports`: on which it listens; `writes`: paths that it has open for writing, those in OWN first.
    `sockets`: names of Unix sockets on which it listens; an abstract one begins with "@". `holds`: a lock, a lease, a
    port, an abstract name, or a socket that no table has.
    """

    began: str
    inner: int
    name: str
    ran: int
    ports: list[int]
    writes: list[str]
    sockets: list[str]
    holds: bool = False


ENDED = 0
EXEC_SEC, NAP_SEC = 5.0, 0.01  # for shells to end that ran the agent's commands
LOOKS = 5  # until no process ends meanwhile; else some end all the time
EPHEMERAL = 32_768  # the kernel chooses ports from here for who names none
_ENDED = Process("", 0, "(ended)", -1, ports=[], writes=[], sockets=[])


class Look:
    """One look at processes of a container. `complete`: nothing was left out, and no file is open unlisted.
    `has_dead`: one was ending, or nobody has waited for it.

    `processes` has one of number ENDED for all that ended before they could be looked at.
    """

    def __init__(self, first: int, pids: Iterable[int]) -> None:
        """`first`: PID 1, as this machine numbers it."""
        self.complete, self.has_dead = True, False
        self._threads, self._files = MOST_THREADS, MOST_FILES
        self._first = first
        self._listening: dict[str, int | str] | None = None
        self._idle = set[str]()  # inodes of other sockets in tables, which have no abstract name
        self._locks = False  # of the process that is read
        self.processes: dict[int, Process] = {}
        for pid in pids:
            try:
                self._read(pid)
            except (OSError, IndexError, ValueError):
                self.processes[ENDED] = _ENDED

    def _read(self, pid: int) -> None:
        """Raises OSError when it has ended."""
        fields = fields_of(pid)
        if fields is None:
            raise ProcessLookupError
        threads = working_threads(pid, self._threads + 1)
        if not threads:
            self.has_dead = True
            return
        self._locks = False
        sockets, writes = self._open_files(pid, threads)
        held = [self._held[inode] for inode in sockets & self._held.keys()] if sockets else []
        ports = sorted(one for one in held if isinstance(one, int))
        named = sorted(one for one in held if isinstance(one, str))[:MOST_WRITES]
        name = text_of(f"/proc/{pid}/comm").rstrip("\n")
        ran = -1 if fields[0] in "RD" else self._ran(pid, threads)  # on a busy machine it may wait for seconds
        holds = self._locks or not sockets <= self._idle
        self.processes[pid] = Process(fields[19], inner_of(pid), name, ran, ports, writes, sockets=named, holds=holds)

    def _ran(self, pid: int, threads: Sequence[int]) -> int:
        self._threads -= len(threads)
        if self._threads < 0:
            self.complete = False
            return -1
        total = 0
        for thread in threads:
            with contextlib.suppress(OSError):
                total += int(text_of(f"/proc/{pid}/task/{thread}/schedstat").split()[0])
        return total

    @property
    def _held(self) -> dict[str, int | str]:
        """Inode of a listening socket -> port or name. The kernel goes through the whole machine's table: 2 ms."""
        if self._listening is None:
            self._listening = {}
            for table, state in _STATES.items():
                for words in rows(f"/proc/{self._first}/net/{table}"):
                    port = int(words[1].rpartition(":")[2], 16)
                    if words[3] == state and (table.startswith("tcp") or port < EPHEMERAL):
                        self._listening[words[9]] = port
                    else:
                        self._idle.add(words[9])
            for words in rows(f"/proc/{self._first}/net/unix", 7):
                if len(words) == 8 and (int(words[3], 16) & _ACCEPTS or words[4] == _DATAGRAM):
                    self._listening[words[6]] = words[7]
                if len(words) == 7 or words[7].startswith("/"):
                    self._idle.add(words[6])
            for table in ("netlink", "packet"):
                self._idle.update(words[-1] for words in rows(f"/proc/{self._first}/net/{table}"))
        return self._listening

    def _open_files(self, pid: int, threads: Sequence[int]) -> tuple[set[str], list[str]]:
        """Inodes of its sockets, and paths that it has open for writing."""
        sockets, writes = set[str](), set[str]()
        for thread in _tables(threads):
            with contextlib.suppress(OSError):  # it has ended
                for name in _names(f"/proc/{pid}/task/{thread}/fd", self._files + 1):
                    self._files -= 1
                    if self._files < 0:
                        self.complete = False
                        break
                    self._open_file(f"/proc/{pid}/task/{thread}", name, sockets, writes)
        self.complete &= len(writes) <= MOST_WRITES
        return sockets, sorted(writes, key=lambda path: (not path.startswith(OWN), path))[:MOST_WRITES]

    def _open_file(self, thread: str, name: str, sockets: set[str], writes: set[str]) -> None:
        with contextlib.suppress(OSError):
            target = os.readlink(f"{thread}/fd/{name}")
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
            elif target.startswith("/") and os.lstat(f"{thread}/fd/{name}").st_mode & stat.S_IWUSR:
                writes.add(target)
            if target.startswith(("socket:[", RING, "/")):
                about = text_of(f"{thread}/fdinfo/{name}")
                self.complete &= not _UNLISTED.search(about)
                self._locks |= "\nlock:" in about


def is_system(path: str) -> bool:
    """Return whether programs of every kind may read there."""
    return _SYSTEM.fullmatch(path) is not None


def is_of_user(path: str) -> bool:
    """Return whether it is a user's configuration or cache."""
    return _OF_USER.fullmatch(path) is not None


def is_common(path: str) -> bool:
    """Return whether programs that are none of the work may look there."""
    return is_system(path) or is_of_user(path) or path.startswith(TESTS)


def pids_of(first: int, most: int = MOST_PROCESSES) -> list[int]:
    """Return all processes of the container of `first`, at most `most`. Raises OSError when it has ended."""
    space, found = os.readlink(f"/proc/{first}/ns/pid"), []
    for pid in listed_of(first) or map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if _space_of(pid) == space:
                found.append(pid)
                if len(found) >= most:
                    break
    return found


def _space_of(pid: int) -> str:
    """The namespace of its number. Raises OSError when it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        thread = next(iter(working_threads(pid)), pid)
        return os.readlink(f"/proc/{pid}/task/{thread}/ns/pid")


def listed_of(first: int) -> list[int]:
    """Return the processes of the container of `first` at one moment, by its control group.

    [] where that is not readable, or has groups below it. So a process is found, too, that lives only until it has
    started its successor; and a look takes no longer beside a hundred containers.
    """
    for group in groups_of(first, ("", "pids")):
        with contextlib.suppress(OSError):  # in mixed hierarchies one of the two
            if os.stat(group).st_nlink <= 2:
                return [int(pid) for pid in text_of(f"{group}/cgroup.procs").split()]
    return []


def groups_of(first: int, kinds: Collection[str]) -> list[str]:
    """Return the folders of the container's control groups of these controllers; "" = all, by version 2."""
    with contextlib.suppress(OSError):
        lines = [line.split(":", 2) for line in text_of(f"/proc/{first}/cgroup").splitlines()]
        return [f"{_GROUPS}/{controllers}{path}" for _, controllers, path in lines if controllers in kinds]
    return []


def threads_of(pid: int, most: int = MOST_THREADS) -> list[int]:
    """Return [] when the process has ended."""
    with contextlib.suppress(OSError):
        return [int(name) for name in _names(f"/proc/{pid}/task", most)]
    return []


def working_threads(pid: int, most: int = MOST_THREADS) -> list[int]:
    """Return its threads; without the first one if that has ended: then the others have what the process has."""
    threads, fields = threads_of(pid, most), fields_of(pid)
    return [one for one in threads if one != pid] if fields is not None and fields[0] in "ZX" else threads


def _tables(threads: Sequence[int]) -> list[int]:
    """The first thread, and those whose open files are not the same as its own."""
    first, *others = threads
    return [first, *(one for one in others if _libc.syscall(_KCMP, first, one, _FILES, 0, 0) != 0)]


def fields_of(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the command's name: state, parent, …; None = it has ended."""
    try:
        return text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return None


def parent_of(pid: int) -> int:
    """Return 0 when it has ended."""
    return int(fields[1]) if (fields := fields_of(pid)) else 0


def inner_of(thread: int) -> int:
    """Return the number that a thread has in its container; 0 = it has ended."""
    with contextlib.suppress(OSError):
        for line in text_of(f"/proc/{thread}/status").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def program_of(pid: int) -> dict[str, Any]:
    """Return what it runs: its parent, working directory and the first words of its command line. Raises OSError."""
    words = _bytes(f"/proc/{pid}/cmdline", MOST_WORDS).decode(errors="surrogateescape").split("\0")
    cwd = os.readlink(f"/proc/{pid}/cwd")
    return {"parent": parent_of(pid), "cwd": cwd, "words": words[:MOST_ARGUMENTS]}


def shown(first: int) -> dict[int, str]:
    """Return what processes of the container of `first` are called, by their numbers there: name and command line."""
    found = dict[int, str]()
    for pid in pids_of(first):
        with contextlib.suppress(OSError):
            found[inner_of(pid)] = text_of(f"/proc/{pid}/comm") + text_of(f"/proc/{pid}/cmdline")
    return found


def mapped(pid: int) -> tuple[list[str], bool]:
    """Return files that the process has mapped and may write, at once or when it gives itself the right, and RING.

    Those in OWN come first. Then whether these are all. One that has ended has none.
    """
    found, path, text = set[str](), "", ""
    with contextlib.suppress(OSError):
        text = text_of(f"/proc/{pid}/task/{next(iter(working_threads(pid)), pid)}/smaps")
    for line in text.splitlines():
        words = line.split(maxsplit=5)
        if words[0] == "VmFlags:":
            if path and {"sh", "mw"} <= {*line.split()}:
                found.add(path)
        elif not words[0].endswith(":"):
            path = words[5] if len(words) == 6 else ""
    paths = sorted(found, key=lambda path: (not path.startswith(OWN), path != RING, path))
    return paths[:MOST_WRITES], len(text) < MOST_BYTES and len(paths) <= MOST_WRITES


def rows(name: str, most: int = -1) -> list[list[str]]:
    """Return the words of a table's lines, but for its head."""
    with contextlib.suppress(OSError):
        return [line.split(maxsplit=most) for line in text_of(name).splitlines()[1:]]
    return []


def _names(folder: str, most: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in itertools.islice(entries, most)]


def text_of(name: str) -> str:
    return _bytes(name, MOST_BYTES).decode(errors="replace")


def _bytes(name: str, most: int) -> bytes:
    """A file object of Python's would take five times as long."""
    file, data = os.open(name, os.O_RDONLY | os.O_CLOEXEC), b""
    try:
        while len(data) < most and (read := os.read(file, min(most, _AT_ONCE))):
            data += read
        return data[:most]
    finally:
        os.close(file)


def living(
    first: int, before: Mapping[int, Process], after: Mapping[int, Process], *, all_hold: bool = False
) -> list[dict[str, object]]:
    """Return the policy's processes: those of `before`. `ran`: one used a processor since, or ended."""
    found: list[dict[str, object]] = []
    for pid, one in before.items():
        now = after.get(pid)
        if now is None or now.began != one.began:
            ran, now = True, one
        else:
            ran = now.ran < 0 or now.ran != one.ran
        name = f"1 ({one.name})" if pid == first else one.name  # no solution leaves one of this name
        found.append(
            {
                "name": name, "ran": ran, "busy": now.ran < 0, "writes": one.writes, "pid": one.inner,
                "holds": (all_hold and pid != first) or now.holds or one.holds,
                "ports": sorted({*one.ports, *now.ports}), "sockets": sorted({*one.sockets, *now.sockets}),
            }
        )  # fmt: skip
    return found


def settled(container: Mapping[str, Any]) -> Look:
    """Return the policy's processes, once the shells have ended that ran the agent's commands, or after EXEC_SEC."""
    first, give_up = container["pid"], time.monotonic() + EXEC_SEC
    while True:
        pids = pids_of(first)
        inside = {0, *pids}  # the daemon starts shells from outside, but for the first one
        others = {pid: fields for pid in pids if pid != first and (fields := fields_of(pid)) is not None}
        ending = [
            pid
            for pid, (state, parent, *_) in others.items()
            if state not in "ZX" and (pid == container["shell"] or int(parent) not in inside)
        ]
        if not ending or time.monotonic() > give_up:
            break
        time.sleep(NAP_SEC)
    look = _taken(container)
    for _ in range(LOOKS - 1):
        if ENDED not in look.processes:  # else it may be a shell of the daemon's, which nobody had waited for yet
            break
        time.sleep(NAP_SEC)
        look = _taken(container)
    return look


def _taken(container: Mapping[str, Any]) -> Look:
    pids = _listed(container)
    look = Look(container["pid"], pids.difference(container["kept"]))
    look.complete &= len(pids) < MOST_PROCESSES
    if look.has_dead and not pids.issuperset(_listed(container)):  # each may live until it has started its successor
        look.processes[ENDED] = _ENDED
    return look


def _listed(container: Mapping[str, Any]) -> set[int]:
    return set(listed_of(container["pid"]) or pids_of(container["pid"]))
