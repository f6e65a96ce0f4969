"""An event loop whose clock jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, override


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
