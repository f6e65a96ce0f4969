"""Limits on a trial's time, which stands still while the server cannot answer."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

Lost = Callable[[], float]  # seconds so far that do not count


class Alarm:
    """Rings at `due`, an event loop time, which is later by the seconds that `lost` counts meanwhile; None = never."""

    def __init__(self, ring: Callable[[], object], lost: Lost) -> None:
        self._ring, self._lost = ring, lost
        self._own: float | None = None  # due, without anything lost
        self._timer: asyncio.TimerHandle | None = None

    @property
    def due(self) -> float | None:
        """By what is lost until now."""
        return None if self._own is None else self._own + self._lost()

    @due.setter
    def due(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._own, self._timer = None, None
        if at is not None:
            self._own = at - self._lost()
            self._timer = asyncio.get_running_loop().call_at(at, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if (due := self.due) is None or due <= loop.time():
            self._own, self._timer = None, None
            self._ring()
        else:
            self._timer = loop.call_at(due, self._look)


class Clock:
    """An `asyncio.timeout_at` whose `due` is later by what is lost within the block."""

    def __init__(self, due: float | None, lost: Lost) -> None:
        self._timeout = asyncio.timeout(None)
        self._alarm = Alarm(lambda: self._timeout.reschedule(asyncio.get_running_loop().time()), lost)
        self._first = due

    @classmethod
    def of(cls, seconds: float, lost: Lost) -> "Clock":
        """Start a clock now; 0 = no limit."""
        return cls(asyncio.get_running_loop().time() + seconds if seconds else None, lost)

    @property
    def due(self) -> float | None:
        return self._alarm.due

    @due.setter
    def due(self, at: float | None) -> None:
        self._timeout.reschedule(None)
        self._alarm.due = at

    def expired(self) -> bool:
        return self._timeout.expired()

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._alarm.due = self._first
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._alarm.due = None
        return await self._timeout.__aexit__(kind, error, trace)
