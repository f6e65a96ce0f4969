"""Network namespaces that trials use one after another, each alone: a container that joins one starts in half the time.

A holder is a waiting container that owns a namespace. Docker's program starts twice for every namespace it makes, and
takes locks that all starts share. All functions block.
"""

import logging
import os
import secrets
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from docker.errors import DockerException

from harbortrainer.docker.daemon import engine, first_process, remove_container

MOST_USES = 200  # trials of one holder
SPARE = 8  # holders beyond the places in use that may wait for their sockets to expire (TIME_WAIT: 60 s)
_FILES = ("HostsPath", "ResolvConfPath", "HostnamePath")  # of the daemon's machine; all in the namespace have them
_PROC = Path("/proc")
_log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class Key:
    """Trials whose holders are interchangeable. `host`: DOCKER_HOST."""

    host: str | None
    run_id: str
    networked: bool


@dataclass(slots=True)
class Holder:
    """A holder. `image`: the ID of its image. `pid`: of its process on this machine. `files`: Docker's files, as they
    were made, with their change times.
    """

    id: str
    key: Key
    image: str
    pid: int
    files: dict[Path, tuple[bytes, int]] = field(default_factory=dict)
    sockets: frozenset[str] = frozenset()  # Docker's own
    uses: int = 0
    spent: bool = False  # no other trial may use it

    def restore(self) -> None:
        """Undo what a trial wrote into its network files. Raises OSError where they cannot be written."""
        for path, (content, changed) in self.files.items():
            if path.stat().st_ctime_ns != changed:
                new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
                new.write_bytes(content)
                new.chmod(0o644)
                new.replace(path)  # with its mode, owner and attributes; those who start from now on get it
                self.files[path] = content, path.stat().st_ctime_ns

    def is_quiet(self) -> bool:
        """Tell if no socket of an earlier trial is left, not even one that only waits. Raises OSError: it has ended."""
        return _sockets(self.pid) <= self.sockets


class Holders:
    """The holders of this process, free ones and those that a trial uses, by the name of its container."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: defaultdict[Key, deque[Holder]] = defaultdict(deque)
        self._held: dict[str, Holder] = {}
        self._made: Counter[Key] = Counter()
        self._ended: Counter[Key] = Counter()  # trials
        self._impossible: set[str | None] = set()  # daemons

    def take(self, name: str, key: Key, make: Callable[[str], str]) -> str | None:
        """Return the ID of a holder for the container `name`; None = it needs a namespace of its own.

        `make(name)` starts a holder's container and returns its ID. None is made before a trial has ended: only a
        place that is used again repays it.
        """
        with self._lock:
            holder, dead = self._quiet(key)
            in_use = sum(one.key == key for one in self._held.values())
            wanted = self._made[key] < min(self._ended[key], in_use + 1 + SPARE)
            make_one = holder is None and wanted and key.host not in self._impossible and os.geteuid() == 0
            self._made[key] += make_one
        for one in dead:
            self._remove(one)
        holder = self._make(key, make) if make_one else holder
        if holder is None:
            return None
        with self._lock:
            self._held[name] = holder
        return holder.id

    def of(self, name: str) -> str | None:
        """Get the ID of the holder of the container `name`, whose network is about to change: nobody uses it again."""
        with self._lock:
            if (holder := self._held.get(name)) is None:
                return None
            holder.spent = True
            return holder.id

    def ended(self, name: str, key: Key) -> None:
        """Call it when the container `name` is gone: the next trial may use its holder."""
        with self._lock:
            self._ended[key] += 1
            holder = self._held.pop(name, None)
        if holder is None:
            return
        holder.uses += 1
        try:
            holder.restore()
        except OSError:  # it has ended
            holder.spent = True
        if holder.spent or holder.uses >= MOST_USES:
            return self._remove(holder)
        with self._lock:
            self._free[key].append(holder)

    def leave(self, image: str) -> None:
        """Remove the holders with this image, which is about to go: free ones now, others after their trials."""
        with self._lock:
            left = [one for free in self._free.values() for one in free if one.image == image]
            for one in left:
                self._free[one.key].remove(one)
            for one in self._held.values():
                one.spent |= one.image == image
        for one in left:
            self._remove(one)

    def failed(self, name: str) -> None:
        """Call it when the container `name` did not start: its holder is removed."""
        with self._lock:
            holder = self._held.pop(name, None)
        if holder is not None:
            self._remove(holder)

    def _quiet(self, key: Key) -> tuple[Holder | None, list[Holder]]:
        """Takes out the free holder without sockets that has waited longest, and those that were stopped or removed."""
        free, dead = self._free[key], []
        for holder in list(free):
            try:
                quiet = holder.is_quiet()
            except OSError:
                free.remove(holder)
                dead.append(holder)
                continue
            if quiet:
                free.remove(holder)
                return holder, dead
        return None, dead

    def _make(self, key: Key, make: Callable[[str], str]) -> Holder | None:
        name = f"ht-network-{secrets.token_hex(6)}"
        try:
            holder = _read(make(name), key)
        except (OSError, DockerException) as error:
            _log.debug("no network namespace to share: %s", error)
            with self._lock:
                self._made[key] -= 1
            if isinstance(error, FileNotFoundError | PermissionError):
                self._impossible.add(key.host)
            remove_container(name)
            return None
        return holder

    def _remove(self, holder: Holder) -> None:
        with self._lock:
            self._made[holder.key] -= 1
        remove_container(holder.id)


def _read(container: str, key: Key) -> Holder:
    """Raises OSError when the daemon's files or processes are not on this machine."""
    found = engine().inspect_container(container)
    holder = Holder(container, key, found["Image"], first_process(found))
    for path in (Path(found[name]) for name in _FILES):
        holder.files[path] = path.read_bytes(), path.stat().st_ctime_ns
    holder.sockets = _sockets(holder.pid)
    return holder


def _sockets(pid: int) -> frozenset[str]:
    """Addresses and state of each TCP socket in the namespace of a process: only they outlive their processes."""
    found: set[str] = set()
    for protocol in ("tcp", "tcp6"):
        table = _PROC / str(pid) / "net" / protocol
        lines = table.read_text().splitlines()[1:] if table.exists() or protocol == "tcp" else []
        found |= {f"{protocol} {' '.join(line.split()[1:4])}" for line in lines}
    return frozenset(found)
