"""Labels on everything we create: which run and which process it belongs to, and whether that process still lives."""

import functools
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

LABEL = "harbortrainer"
RUN = "harbortrainer.run"
TRIAL = "harbortrainer.trial"
HOST = "harbortrainer.host"
PID = "harbortrainer.pid"
DIGEST = "harbortrainer.digest"
BUILT = "harbortrainer.built"  # an image is shared: these two only tell when it was built, and for which run
BUILT_FOR = "harbortrainer.built-for"


def labels(run_id: str, trial: str = "") -> dict[str, str]:
    """Labels of a container, network or volume of this process."""
    return {LABEL: "1", RUN: run_id, TRIAL: trial} | process()


def image_labels(digest: str, run_id: str) -> dict[str, str]:
    """Labels of an image that is built once for all runs."""
    return {LABEL: "1", DIGEST: digest, BUILT: datetime.now(UTC).isoformat(timespec="seconds"), BUILT_FOR: run_id}


def process() -> dict[str, str]:
    """The labels that tell this process from any other."""
    return {HOST: _host(), PID: f"{os.getpid()}:{_started(os.getpid())}"}


def owner_is_dead(marks: Mapping[str, str]) -> bool:
    """Whether the process that set these labels ran where we can see it, and is gone.

    False when it may live out of our sight (another host or PID namespace).
    """
    return marks.get(LABEL) == "1" and _lives(marks) is False


def owner_is_alive(marks: Mapping[str, str]) -> bool:
    """Whether the process that these labels name runs where we can see it."""
    return _lives(marks) is True


def _lives(marks: Mapping[str, str]) -> bool | None:
    """None = out of our sight."""
    pid, _, started = marks.get(PID, "").partition(":")
    if marks.get(HOST) != _host() or not pid.isdigit():
        return None
    return _started(int(pid)) == started


@functools.cache
def _host() -> str:
    """Host name, boot and PID namespace: a PID means nothing outside them."""
    parts = [socket.gethostname()]
    boot = Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():
        parts += [boot.read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return "/".join(parts)


def _started(pid: int) -> str:
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
