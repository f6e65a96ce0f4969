"""Identifies processes by two marks, kept as labels or in a file, and tells whether a marked process still lives."""

import functools
import os
import socket
from collections.abc import Mapping
from pathlib import Path

HOST = "harbortrainer.host"
PID = "harbortrainer.pid"


def this_process() -> dict[str, str]:
    """Return the marks of this process."""
    return {HOST: _host(), PID: f"{os.getpid()}:{started(os.getpid())}"}


def lives(marks: Mapping[str, str]) -> bool | None:
    """Return whether the marked process lives; None = unknown, on another host or in another PID namespace."""
    pid, _, since = marks.get(PID, "").partition(":")
    if marks.get(HOST) != _host() or not pid.isdigit():
        return None
    return started(int(pid)) == since


@functools.cache
def _host() -> str:
    """Host name, boot and PID namespace, within which a PID is unique."""
    parts = [socket.gethostname()]
    boot = Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():
        parts += [boot.read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return "/".join(parts)


def started(pid: int) -> str:
    """Start time of a process in kernel ticks (PIDs are reused); "" = no such process, "?" = unknown here."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return "" if fields[0] in "ZX" else fields[19]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "?"
