"""Processes that a test stops, or whose CPU it measures."""

import os
import signal
import time
from pathlib import Path

LIMIT_SEC = 600.0


def freeze(pid: int) -> None:
    """Stop a process (SIGSTOP); returns when none of its threads runs any more. Raises ProcessLookupError."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + LIMIT_SEC
    while any(state not in "TZX" for state in _states(pid)):  # stopped, or ended
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} runs on after SIGSTOP")
        time.sleep(0.01)


def cpu_seconds(pid: int) -> float:
    """CPU time so far of all threads of a process. Raises FileNotFoundError."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _states(pid: int) -> list[str]:
    """Of its threads, as the kernel names them; those that have ended meanwhile are left out."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            states.append(stat.read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return states
