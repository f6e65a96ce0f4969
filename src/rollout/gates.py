"""How much of a run happens at once: containers, and trials that start, run or verify, each under its own limit."""

import asyncio
import logging
import time
from dataclasses import dataclass

from src.config import Config

SLOW_START_SEC = 5.0  # a start below this is never slow,
SLOW_RATIO = 5.0  # nor one below this many times the fastest
STARTS_BEFORE_MORE = 8  # good starts in a row before one more at once is tried
log = logging.getLogger("harbortrainer")


class StartLimit:
    """At most `most` starts at once. Slow starts halve the number.

    Additive increase, multiplicative decrease (Chiu & Jain 1989): the daemon is shared with others we cannot see.
    """

    def __init__(self, most: int) -> None:
        self.limit = most
        self._most = most
        self._under_way = 0
        self._changed = asyncio.Event()
        self._fastest = float("inf")
        self._good = 0
        self._halved = 0.0  # clock time of the last halving

    async def acquire(self) -> None:
        while self._under_way >= self.limit:
            self._changed.clear()
            await self._changed.wait()
        self._under_way += 1

    def release(self, seconds: float | None = None) -> None:
        """`seconds`: how long the start took; None = it failed or was cancelled, which says nothing."""
        self._under_way -= 1
        self._changed.set()
        if seconds is None:
            return
        self._fastest = min(self._fastest, seconds)
        if seconds > max(SLOW_START_SEC, SLOW_RATIO * self._fastest):
            self._slow_down(seconds)
        else:
            self._speed_up()

    def _slow_down(self, seconds: float) -> None:
        self._good = 0
        now = time.monotonic()
        if self.limit == 1 or now - self._halved < seconds:  # it was under way when the last halving came
            return
        self._halved = now
        before, self.limit = self.limit, max(1, self.limit // 2)
        log.warning(
            "environments start slowly (%.1f s, fastest %.1f s): %d at once instead of %d",
            seconds, self._fastest, self.limit, before,
        )  # fmt: skip

    def _speed_up(self) -> None:
        self._good += 1
        if self.limit < self._most and self._good >= STARTS_BEFORE_MORE:
            self._good = 0
            self.limit += 1


@dataclass(frozen=True, slots=True)
class Gates:
    """What all trials of a run pass. A trial holds a container's place throughout, and one of the others at a time."""

    containers: asyncio.Semaphore
    starting: StartLimit
    running: asyncio.Semaphore
    verifying: asyncio.Semaphore

    @classmethod
    def of(cls, config: Config) -> "Gates":
        return cls(
            containers=asyncio.Semaphore(n_containers(config)),
            starting=StartLimit(config.n_parallel_starts),
            running=asyncio.Semaphore(config.n_parallel_envs),
            verifying=asyncio.Semaphore(config.n_parallel_envs),
        )


def n_containers(config: Config) -> int:
    """Environments alive at once: those whose agent runs or that are verified, and those started ahead."""
    warm = config.n_warm_envs
    if warm is None:  # a cloud's environments cost money from their start
        warm = -(-config.n_parallel_envs // 4) if config.environment_type == "docker" else 0
    return config.n_parallel_envs + warm
