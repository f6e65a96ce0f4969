"""How much memory the engine may take and how much of it is free: of the GPU, or of the cgroup and the machine."""

# pyright: reportMissingImports=false
from collections.abc import Iterator
from pathlib import Path

import jax

GIB = 1 << 30
CGROUPS = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


class Room:
    """`limit_bytes`: the operator's, for a CPU; 0: none."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes

    def limit(self) -> int | None:
        """Bytes that the engine may take in all, on each device; None = unknown."""
        stats = jax.local_devices()[0].memory_stats() or {}
        if "bytes_limit" in stats:
            return stats["bytes_limit"]
        return min(
            filter(None, (self.limit_bytes, *(limit for limit, _ in cgroups()), meminfo("MemTotal"))), default=None
        )

    def free(self) -> int | None:
        """Bytes of the limit that are not taken now; None = unknown."""
        stats = jax.local_devices()[0].memory_stats() or {}
        if "bytes_limit" in stats:
            return stats["bytes_limit"] - stats["bytes_in_use"]
        found = [limit - used for limit, used in cgroups()]
        if self.limit_bytes:
            found.append(self.limit_bytes - resident())
        if available := meminfo("MemAvailable"):
            found.append(available)
        return min(found, default=None)


def resident() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


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
