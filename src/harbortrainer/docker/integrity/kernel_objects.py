"""What a container has in the kernel and in /dev beside files and processes, seen from its machine.

A part of watcher.py's program, which needs root and has the standard library alone.
"""

import contextlib
import ctypes
import itertools
import os
import re
import stat
from collections.abc import Iterator

from harbortrainer.docker.integrity.living import DEVICES, EPHEMERAL, MOST_FILES, groups_of, rows, text_of

_TABLES = ("shm", "sem", "msg")  # of System V, in /proc/sysvipc
_IPC = 0x08000000  # CLONE_NEWIPC
# Of a control group, by either version: ended for the memory, refused by the number of processes.
_REFUSALS = {"memory.events": "oom_kill", "memory.oom_control": "oom_kill", "pids.events": "max"}
_libc = ctypes.CDLL(None, use_errno=True)


def objects_of(first: int) -> list[dict[str, object]]:
    """Return what the container of `first` has in the kernel, as processes that sleep: kinds of System V objects, and
    ports of closed sockets that are not free yet. Raises OSError.
    """
    with contextlib.ExitStack() as undo:
        own, its = (os.open(f"/proc/{one}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC) for one in ("thread-self", first))
        undo.callback(os.close, own)
        undo.callback(os.close, its)
        if _libc.setns(its, _IPC) != 0:  # of this thread
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        undo.callback(_libc.setns, own, _IPC)
        found = [f"System V {table}" for table in _TABLES if text_of(f"/proc/sysvipc/{table}").count("\n") > 1]
    nothing = {"ran": False, "busy": False, "holds": True, "writes": (), "pid": 0, "ports": (), "sockets": ()}
    return [
        *({"name": name, **nothing} for name in found),
        *({"name": f"tcp {port} (closed)", **nothing, "holds": False, "ports": [port]} for port in _closed(first)),
    ]


def _closed(first: int) -> list[int]:
    """Ports of sockets that no process has. The kernel goes through the whole machine's table: 2 ms."""
    if " tw 0 " in text_of(f"/proc/{first}/net/sockstat"):
        return []
    sockets = (words for table in ("tcp", "tcp6") for words in rows(f"/proc/{first}/net/{table}"))
    ports = {int(words[1].rpartition(":")[2], 16) for words in sockets if words[9] == "0"}
    return sorted(port for port in ports if port < EPHEMERAL)


def in_dev(first: int) -> Iterator[str]:
    """Yield paths in /dev that no container has of itself: no devices, which a policy cannot make."""
    folder = f"/proc/{first}/root/dev"
    for above in ("", "/shm", "/mqueue"):
        with contextlib.suppress(OSError), os.scandir(folder + above) as entries:
            for entry in itertools.islice(entries, MOST_FILES):
                is_device = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) in (stat.S_IFCHR, stat.S_IFBLK)
                if above or (entry.name not in (*DEVICES.split("|"), "shm", "mqueue") and not is_device):
                    yield f"/dev{above}/{entry.name}"


def refused(first: int) -> int:
    """Return how often the container's limits ended a process for its memory, or refused one."""
    found = 0
    for group, (name, key) in itertools.product(groups_of(first, ("", "memory", "pids")), _REFUSALS.items()):
        with contextlib.suppress(OSError):  # of the other version, or it has ended
            found += sum(map(int, re.findall(rf"(?m)^{key} (\d+)$", text_of(f"{group}/{name}"))))
    return found
