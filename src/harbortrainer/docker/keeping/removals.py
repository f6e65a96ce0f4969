"""Turns of removals: while containers start, others are removed one at a time, since both take the daemon's locks.

The number of ended containers that wait is bounded: as it grows, more are removed at once, and at the bound no
container starts until one of them is gone.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakKeyDictionary

AT_ONCE = 4  # removals; on every machine that was measured more of them do not end sooner
LEAST_ENDED = 8


class Removals:
    """The removals of an event loop. `most`: ended containers that are not removed yet, beyond which none starts.

    Containers whose removal the daemon has refused wait for another try and are not counted.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._starting = 0
        self._removing = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._changed = asyncio.Event()
        self.given_up = asyncio.Event()  # no refused removal waits for another try any more

    @property
    def ended(self) -> int:
        """Containers that are removed or wait for it."""
        return len(self._waiting) + self._removing

    async def room(self) -> None:
        """Return when a container may start."""
        while self.ended >= self._most:
            self._changed.clear()
            await self._changed.wait()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Count a start as under way in the block."""
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
            self._grant()

    @asynccontextmanager
    async def turn(self, *, first: bool = False) -> AsyncIterator[None]:
        """Wait for a removal's turn, which the block has; `first`: before all that wait."""
        turn = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if first else self._waiting.append)(turn)
        self._grant()
        try:
            await turn
            yield
        finally:
            if turn.cancelled():
                self._waiting.remove(turn)
            else:
                self._removing -= 1
            self._changed.set()
            self._grant()

    def _grant(self) -> None:
        granted = [turn for turn in self._waiting if not turn.done()][: max(0, self._at_once() - self._removing)]
        for turn in granted:
            self._waiting.remove(turn)
            self._removing += 1
            turn.set_result(None)

    def _at_once(self) -> int:
        """One while containers start and fewer than half of the bound have ended; then more, up to AT_ONCE."""
        if not self._starting:
            return AT_ONCE
        over = max(0.0, 2 * self.ended / self._most - 1)
        return min(AT_ONCE, 1 + int(AT_ONCE * over))


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Removals] = WeakKeyDictionary()


def removals() -> Removals:
    """Return the removals of the running event loop."""
    loop = asyncio.get_running_loop()
    return _of_loops.setdefault(loop, Removals(most_ended(os.cpu_count() or 1)))


def most_ended(cpus: int) -> int:
    """Return the bound on ended containers that are not removed yet: 9 MB of memory each, and the disk of its trial."""
    return max(LEAST_ENDED, 2 * cpus)
