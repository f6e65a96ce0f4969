"""The memory of this machine and of the cgroups that this process is in; without JAX."""

from collections.abc import Iterator
from pathlib import Path

GIB = 1 << 30
CGROUPS = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
HOST_SHARE = 0.5  # of what is available, for what passes on a GPU keep there


def host_bytes() -> float:
    """Of the host's memory that passes on a GPU may take."""
    free = [meminfo("MemAvailable"), *(limit - used for limit, used in cgroups())]
    return HOST_SHARE * max(min(free), 0)


def meminfo(name: str) -> int:
    """Bytes; 0 = not told."""
    if not MEMINFO.exists():
        return 0
    lines = (line.split() for line in MEMINFO.read_text().splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == f"{name}:"), 0)


def cgroups() -> Iterator[tuple[int, int]]:
    """(limit, used) of each of this process's cgroups that has a limit; used without what the kernel can take back."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            yield from limits(CGROUPS, path, "memory.max", ("anon", "shmem"))
        elif "memory" in controllers.split(","):
            yield from limits(CGROUPS / "memory", path, "memory.limit_in_bytes", ("total_rss", "total_shmem"))


def limits(base: Path, path: str, name: str, counted: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Of the cgroup at `path` and those above it; a container sees its own as `base`."""
    folder = base / path.lstrip("/")
    for place in (folder, *folder.parents):
        if (file := place / name).exists() and (text := file.read_text().strip()) != "max":
            stat = dict(row.split() for row in (place / "memory.stat").read_text().splitlines())
            yield int(text), sum(int(stat.get(one, 0)) for one in counted)
        if place == base:
            return
