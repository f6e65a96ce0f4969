"""Decides whether and why a run stops early: a signal, or a limit of its own."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any, NoReturn

from harbortrainer.config import Config

SIGNAL_STATUS = 130  # 128 + SIGINT, for SIGTERM too
LIMIT_STATUS = 75  # EX_TEMPFAIL of sysexits.h: neither done nor a mistake, the same command goes on


class Stopped(Exception):
    """The run was asked to end, and the work that raises this is over."""


class Stop:
    """Only the first request counts: a second signal ends the process at once."""

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


SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONE_PRESS_SEC = 1.0  # a terminal and the script around us may both pass on one Ctrl-C
SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it


@contextlib.contextmanager
def heeding(stop: Stop) -> Iterator[None]:
    """Within the block, in the main thread. A signal that this process was told to ignore stays ignored."""
    loop = asyncio.get_running_loop()
    first: float | None = None

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            loop.call_soon_threadsafe(stop.request, signal.Signals(number).name, SIGNAL_STATUS)
        elif time.monotonic() - first > ONE_PRESS_SEC:
            _leave(stop)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(stop: Stop) -> None:
    """From a signal handler: no buffered output, no clean-up, whatever the loop is doing."""
    cursor = SHOW_CURSOR if os.isatty(2) else ""
    os.write(2, f"{cursor}\nleft at once{stop.then and '; '}{stop.then}\n".encode())
    os._exit(SIGNAL_STATUS)


End = Coroutine[Any, Any, NoReturn]  # waits for a reason to end the work, and raises it


async def unless[T](work: Coroutine[Any, Any, T], *ends: End) -> T:
    """Result of `work`. When one of `ends` raises first, `work` is cancelled, its clean-up awaited, and that is raised.

    Work is not started when an end is due already. Where both fail at once, the end counts: it names the cause.
    """
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(end) for end in ends]
    watchers, call = list(tasks), None
    try:
        await asyncio.sleep(0)
        if (due := _first_done(watchers)) is None:
            call = asyncio.create_task(work)
            tasks.append(call)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            due = _first_done(watchers)
            if call.done() and (due is None or call.cancelled() or call.exception() is None):
                return call.result()
        assert due is not None
        return due.result()
    finally:
        if call is None:
            work.close()  # it was never started
        await _cancel(tasks)


def first_error(error: BaseException) -> BaseException:
    """The error that ended a group; its siblings were only cancelled."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _first_done(tasks: list[asyncio.Task[Any]]) -> asyncio.Task[Any] | None:
    return next((task for task in tasks if task.done()), None)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel all and await their clean-up. Their errors are ignored."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks it as seen


async def in_daemon_thread[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function in a thread of its own. Cancelling the wait does not stop it.

    A process that ends meanwhile drops its connections; with that the Docker daemon gives up a build.
    """
    return await asyncio.wrap_future(daemon_future(function, *args, **kwargs))


def daemon_future[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
    """The same for those who do not wait in an event loop: its result or error, whatever that is."""
    future: Future[R] = Future()
    future.set_running_or_notify_cancel()  # nobody's cancellation ends the thread, nor what it hands on

    def work() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=work, name=getattr(function, "__name__", "waiting"), daemon=True).start()
    return future
