"""Limits on a trial's time, which stands still while the server cannot answer, or this process does not run."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

Lost = Callable[[], float]  # seconds so far that do not count
LOOK_SEC, LATE_SEC = 2.0, 5.0  # between two looks at the time; later than that, this process was stopped


class Alarm:
    """Rings at `due`, an event loop time, which is later by what is lost meanwhile; None = never.

    Lost are the seconds that `counted` counts, and beside them those in which this process was stopped.
    """

    def __init__(self, ring: Callable[[], object], counted: Lost) -> None:
        self._ring, self._counted = ring, counted
        self._stopped = 0.0  # seconds so far
        self._own: float | None = None  # due, without anything lost
        self._timer: asyncio.TimerHandle | None = None

    @property
    def due(self) -> float | None:
        """By what is lost until now."""
        return None if self._own is None else self._own + self._counted() + self._stopped

    @due.setter
    def due(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._own, self._timer = None, None
        if at is not None:
            self._own = at - self._counted() - self._stopped
            self._wait(at)

    def _wait(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        at = min(due, loop.time() + LOOK_SEC)
        self._timer = loop.call_at(at, self._look, at, self._counted())

    def _look(self, at: float, counted: float) -> None:
        """`at`: when it was to look; `counted`: so far, when that was decided."""
        now = asyncio.get_running_loop().time()
        if (stopped := now - at - (self._counted() - counted)) > LATE_SEC:
            self._stopped += stopped
        if (due := self.due) is None or due <= now:
            self._own, self._timer = None, None
            self._ring()
        else:
            self._wait(due)


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
