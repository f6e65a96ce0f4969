"""Decides whether and why a run stops early: a signal, or a limit of its own."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from src.config import Config

SIGNAL_STATUS = 130  # 128 + SIGINT, for SIGTERM too
LIMIT_STATUS = 75  # EX_TEMPFAIL of sysexits.h: neither done nor a mistake, the same command goes on


class Stopped(Exception):
    """The run was asked to end, and the work that raises this is over."""


class Stop:
    """The first request counts. Nobody asks twice: a second signal leaves the process (`src/signals.py`)."""

    def __init__(self) -> None:
        self.why = ""
        self.status = 0  # of the process, once asked
        self.lets_end = False  # whether trials that run are let end
        self.then = ""  # how to go on, when a second signal ends the process
        self.say: Callable[[str], None] = lambda _: None
        self._wait_for_trials = False
        self._trials_left: int | None = None
        self._max_trials = 0
        self._overspent: Callable[[], tuple[str, int] | None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = asyncio.Event()
        self._abandon: Callable[[], object] = lambda: None

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def limit(self, config: Config, say: Callable[[str], None]) -> None:
        """The run's own limits; `max_wall_sec` counts from now."""
        self.say = say
        self._wait_for_trials = config.on_stop == "wait"
        if seconds := config.max_wall_sec:
            why = f"max_wall_sec={seconds:g} are over"
            asyncio.get_running_loop().call_later(seconds, self.request, why, LIMIT_STATUS)

    def limit_trials(self, most: int, started: int) -> None:
        """`started`: trials of the run so far, earlier processes included; `most`: 0 = no limit."""
        self._max_trials = most
        self._trials_left = max(0, most - started) if most else None

    def limit_spending(self, over: Callable[[], tuple[str, int] | None]) -> None:
        """`over`: why no more may be spent and the exit status then, None while more may be. Within the event loop."""
        self._loop = asyncio.get_running_loop()
        self._overspent = over

    def may_go_on(self) -> bool:
        """Whether nothing asked the run to end, and no cap on what it spends is reached."""
        if not self.asked and (over := self._overspent()) is not None:
            self.request(*over)
        return not self.asked

    def may_start(self) -> bool:
        """Whether one more trial may start, which is counted then. Those that `max_trials` allows are let end."""
        if not self.asked and self._trials_left == 0:
            self._request(f"max_trials={self._max_trials} were started", LIMIT_STATUS, lets_end=True)
        if not self.may_go_on():
            return False
        if self._trials_left is not None:
            self._trials_left -= 1
        return True

    def request(self, why: str, status: int) -> None:
        """Ask the run to end. Outside its loop over steps that cancels it."""
        self._request(why, status, lets_end=self._wait_for_trials)

    def request_soon(self, why: str, status: int) -> None:
        """The same from any thread; after `limit_spending`."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.request, why, status)

    def cancels(self, task: "asyncio.Task[Any]") -> None:
        """The task that a request cancels while nobody heeds it."""
        self._abandon = task.cancel

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """Within the block a request cancels nothing: whoever entered it looks at `asked`, and ends in order."""
        abandon, self._abandon = self._abandon, lambda: None
        try:
            yield
        finally:
            self._abandon = abandon

    async def wait(self) -> None:
        await self._asked.wait()

    async def stopped(self, *, trials: bool = False) -> NoReturn:
        """An end for `waiting.unless`: raises Stopped once the run is asked to stop.

        `trials`: the work is a batch of trials, which ends by itself where running trials may finish.
        """
        await self._asked.wait()
        if trials and self.lets_end:
            await asyncio.Event().wait()
        raise Stopped(self.why)

    def _request(self, why: str, status: int, *, lets_end: bool) -> None:
        if self.asked:
            return
        self.why, self.status, self.lets_end = why, status, lets_end
        self._asked.set()
        trials = "trials that run are let end" if lets_end else "trials that run are cancelled"
        self.say(f"{why}: {trials}, then the weights are saved; a second Ctrl-C leaves at once")
        self._abandon()
