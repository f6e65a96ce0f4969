"""How much memory the engine may take and how much of it is free: of the GPU, or of the cgroup and the machine."""

# pyright: reportMissingImports=false
from pathlib import Path

import jax

from repairs.machine import cgroups, host_bytes, meminfo


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
        """Bytes of the limit that are not taken now; None = unknown. Of a GPU: those in one piece, for a program."""
        stats = jax.local_devices()[0].memory_stats() or {}
        if "bytes_limit" in stats:
            free = stats["bytes_limit"] - stats["bytes_in_use"]
            outside = stats["bytes_limit"] - stats.get("pool_bytes", 0)
            return min(free, stats.get("largest_free_block_bytes", free) + outside)
        found = [limit - used for limit, used in cgroups()]
        if self.limit_bytes:
            found.append(self.limit_bytes - resident())
        if available := meminfo("MemAvailable"):
            found.append(available)
        return min(found, default=None)

    def host(self) -> float:
        """Bytes of the host's memory that passes on a GPU may take; 0 on a CPU, which has no other memory."""
        return host_bytes() if "bytes_limit" in (jax.local_devices()[0].memory_stats() or {}) else 0


def resident() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
