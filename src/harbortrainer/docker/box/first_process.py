"""What this machine knows of each container, noted before its agent acts, and the end of a container's processes.

It needs root on the daemon's machine; `main` is a program for a trainer that is not, with the standard library alone.
All functions block.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST = 1024
_OWN_USERS = ["0", "0", "4294967295"]  # of a container whose root is this machine's


@dataclass(frozen=True, slots=True)
class Noted:
    """A container before its agent acted. `pid`, `shell`: its first process and the shell that started with it, as this
    machine numbers them. `began`, `root`: of the first process; None = its root is not this machine's.
    """

    pid: int
    shell: int
    overlay: tuple[str, ...]
    began: str = ""
    root: os.stat_result | None = None


_noted: dict[str, Noted] = {}  # by container; names are never used twice


def note(name: str, pid: int, shell: int, overlay: tuple[str, ...] = ("",)) -> None:
    """Call it before the agent acts, with processes that are known to be the container's first one and first shell."""
    one = Noted(pid, shell, overlay)
    with contextlib.suppress(OSError), process_folder(pid) as process:
        if _text("uid_map", process).split() == _OWN_USERS:
            one = Noted(pid, shell, overlay, began(process), os.stat("root", dir_fd=process))
    if len(_noted) >= _MOST:
        _noted.pop(list(_noted)[0], None)  # noqa: RUF015 -- threads add others meanwhile
    _noted[name] = one


def noted(name: str) -> Noted | None:
    """Return what was noted of the container."""
    return _noted.get(name)


def overlay_of(inspected: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the overlay's upper folder, "" for another driver, and the lower ones; a container keeps them."""
    driver = inspected.get("GraphDriver") or {}
    data = driver.get("Data") or {}
    upper = data.get("UpperDir") if driver.get("Name") == "overlay2" else None
    return upper or "", *str(data.get("LowerDir") or "").split(":")


def end_first(name: str) -> bool:
    """Kill the container's first process, with which all others end. False = it is not the one that was noted."""
    one = _noted.get(name)
    return one is not None and _end(one.pid, lambda process: began(process) == one.began)


def end_all(container: str) -> None:
    """Kill the processes of a container by its ID, where this process may.

    Docker waits without an end for a container in which a policy has stopped what Docker started there.
    """
    ends = f"/{container}", f"-{container}.scope"
    for pid in filter(str.isdigit, os.listdir("/proc")) if container else ():
        _end(int(pid), lambda process: any(one.endswith(ends) for one in _text("cgroup", process).splitlines()))


def _end(pid: int, is_it: Callable[[int], bool]) -> bool:
    """Kill a process if it `is_it`, told by its folder. Returns whether it was killed."""
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)  # before the look: no other process can take its number
        try:
            with process_folder(pid) as folder:
                found = is_it(folder)
            if found:
                signal.pidfd_send_signal(process, signal.SIGKILL)
            return found
        finally:
            os.close(process)
    return False


@contextlib.contextmanager
def process_folder(pid: int) -> Iterator[int]:
    """Open its folder in /proc, which shows no other process after its end. Raises OSError."""
    process = os.open(f"/proc/{pid}", _FOLDER)
    try:
        yield process
    finally:
        os.close(process)


def _text(name: str, process: int) -> str:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process), errors="replace") as file:
        return file.read()


def began(process: int) -> str:
    """Return when a process was started, by its folder. Raises OSError."""
    return _text("stat", process).rpartition(")")[2].split()[19]


def parent_of(pid: int) -> int:
    """Raises OSError."""
    with process_folder(pid) as process:
        return int(_text("stat", process).rpartition(")")[2].split()[1])


def main() -> None:
    """End each container of which the ID is a line of standard input, and print the ID."""
    for line in sys.stdin:
        end_all(line.strip())
        print(line, end="", flush=True)
