"""How much this machine has to do already."""

import time
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE = slice(3, 5)  # idle and waiting for disks, of the first line's times


def busy_share(seconds: float) -> float:
    """Share of the processors' time that is not idle during so many seconds from now; 0 where no /proc says. Blocks.

    The load average is no measure: it remembers a run that ended a minute ago.
    """
    if not _STAT.exists():
        return 0.0
    idle, total = _times()
    time.sleep(seconds)
    idle_after, total_after = _times()
    return 1 - (idle_after - idle) / max(total_after - total, 1)


def _times() -> tuple[int, int]:
    """Idle and all, of all processors, in the kernel's ticks. (proc_stat(5): guest times are in user and nice.)"""
    times = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    return sum(times[_IDLE]), sum(times)
