"""A limit on how many hold a slot at once, which may change while slots are held."""

import asyncio
from collections import deque


class Slots:
    """A semaphore with a `limit` that can be changed. Slots are given in the order in which they are asked for."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        if not self._waiting and self.taken < self.limit:
            self.taken += 1
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
        self.taken -= 1
        self._give()

    def resize(self, limit: int) -> None:
        """Change the number of slots: more are given at once, and those above a lower limit not again."""
        self.limit = limit
        self._give()

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def _give(self) -> None:
        while self._waiting and self.taken < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)
