"""An event loop whose clock jumps to the next timer, and a daemon that starts and removes containers in its time."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, override

TICK = 0.02


class _Selector(selectors.EpollSelector):
    """Waits for nothing: the clock jumps over the time in which nothing happens."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    @override
    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("nothing is left that could happen")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    @override
    def time(self) -> float:
        return self._clock.now


def in_virtual_time[T](work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class SimulatedDaemon:
    """Processors are shared evenly; start and removal each need a lock, which a removal holds for long."""

    START_CPU, START_WAIT, START_LOCKED = 0.2, 0.1, 0.02
    REMOVAL_CPU, REMOVAL_LOCKED = 0.07, 0.1

    def __init__(self, cpus: int) -> None:
        self._cpus = cpus
        self._working = 0
        self._lock = asyncio.Lock()
        self.most_removed_at_once = self._removing = 0

    async def start(self) -> None:
        await self._work(self.START_CPU)
        async with self._lock:
            await asyncio.sleep(self.START_LOCKED)
        await asyncio.sleep(self.START_WAIT)

    async def remove(self) -> None:
        self._removing += 1
        self.most_removed_at_once = max(self.most_removed_at_once, self._removing)
        await self._work(self.REMOVAL_CPU)
        async with self._lock:
            await asyncio.sleep(self.REMOVAL_LOCKED)
        self._removing -= 1

    async def _work(self, seconds: float) -> None:
        self._working += 1
        while seconds > 0:
            await asyncio.sleep(TICK)
            seconds -= TICK * min(1.0, self._cpus / self._working)
        self._working -= 1
