"""A limit on how many hold a slot at once, which may change while slots are held."""

import asyncio
import time
from collections import deque
from collections.abc import Callable


class Slots:
    """A semaphore with a `limit` that can be changed. Slots are given in the order in which they are asked for."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.taken = 0
        self.released: Callable[[], None] = lambda: None  # called after each release
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._clock = clock
        self._held_seconds = 0.0
        self._counted_at = clock()

    async def acquire(self) -> None:
        if not self._waiting and self.taken < self.limit:
            self._take()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given a slot in the same moment
                self.release()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def release(self) -> None:
        self._count()
        self.taken -= 1
        self._give()
        self.released()

    def resize(self, limit: int) -> None:
        """Change the number of slots: more are given at once, and those above a lower limit not again."""
        self.limit = limit
        self._give()

    @property
    def held_seconds(self) -> float:
        """Integral over time, in seconds, of the number of slots that are held."""
        self._count()
        return self._held_seconds

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def _give(self) -> None:
        while self._waiting and self.taken < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._take()
                turn.set_result(None)

    def _take(self) -> None:
        self._count()
        self.taken += 1

    def _count(self) -> None:
        now = self._clock()
        self._held_seconds += (now - self._counted_at) * self.taken
        self._counted_at = now
