"""What a stretch of work cost this machine, and what this process holds."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DAEMONS = ("dockerd", "containerd")
_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass
class Cost:
    """Seconds. `rest` is everything else on the machine: runc and shims, what runs in containers, the docker CLI."""

    wall: float = 0.0
    own: float = 0.0
    daemon: float = 0.0
    rest: float = 0.0


@contextmanager
def metered() -> Iterator[Cost]:
    """Measures its block. CPU is the whole machine's: nothing else should run meanwhile."""
    cost = Cost()
    wall, own, daemon, machine = _clocks()
    yield cost
    wall, own, daemon, machine = (now - then for now, then in zip(_clocks(), (wall, own, daemon, machine), strict=True))
    cost.wall, cost.own, cost.daemon, cost.rest = wall, own, daemon, max(0.0, machine - own - daemon)


def _clocks() -> tuple[float, float, float, float]:
    return time.monotonic(), time.process_time(), _daemon_cpu(), _machine_cpu()


def _daemon_cpu() -> float:
    """CPU seconds so far of dockerd and containerd; 0 when they run elsewhere."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name in DAEMONS:
            ticks += sum(int(field) for field in rest.split()[11:13])
    return ticks / _TICK


def _machine_cpu() -> float:
    """CPU seconds so far of all processes: user, nice, system, irq, softirq."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[i]) for i in (0, 1, 2, 5, 6)) / _TICK


@dataclass(frozen=True)
class Holdings:
    """What this process holds. `rss_mb` in MiB."""

    rss_mb: float
    descriptors: int
    threads: int


def holdings() -> Holdings:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return Holdings(megabytes, len(os.listdir("/proc/self/fd")), threading.active_count())
