"""Early ends of a run: requests to stop, signals, cancelled work, and threads that cannot delay the exit."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import IO, Any, NoReturn

from harbortrainer.config import RunSettings

SIGNAL_STATUS = 130  # 128 + SIGINT, for SIGTERM too
LIMIT_STATUS = 75  # EX_TEMPFAIL of sysexits.h: stopped by a limit; the same command continues the run
PIPE_STATUS = 141  # 128 + SIGPIPE: nothing reads the output
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: the terminal is gone
ONE_PRESS_SEC = 1.0  # a terminal and the script around us may both pass on one Ctrl-C
SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it

End = Coroutine[Any, Any, NoReturn]  # waits for a reason to end the work, and raises it


class Stopped(Exception):
    """The run was asked to end, and the work that raises this is over."""


class Stop:
    """Decides whether and why a run stops early. Only the first request counts; a second signal exits immediately."""

    def __init__(self) -> None:
        self.why = ""
        self.status = 0  # exit status of the process, once asked
        self.lets_end = False  # whether running trials may finish
        self.resume_hint = ""  # printed when a second signal ends the process
        self._say: Callable[[str], None] = lambda _: None
        self._trials_left: int | None = None
        self._max_trials = 0
        self._overspent: Callable[[], tuple[str, int] | None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = asyncio.Event()
        self._cancel: Callable[[], object] = lambda: None

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def limit(self, config: RunSettings, say: Callable[[str], None]) -> None:
        """Apply the run's own limits; `max_wall_sec` counts from now."""
        self._say = say
        if seconds := config.max_wall_sec:
            why = f"max_wall_sec={seconds:g} are over"
            asyncio.get_running_loop().call_later(seconds, self.request, why, LIMIT_STATUS)

    def limit_trials(self, most: int, started: int) -> None:
        """`started`: trials of the run so far, earlier processes included; `most`: 0 = no limit."""
        self._max_trials = most
        self._trials_left = max(0, most - started) if most else None

    def limit_spending(self, over: Callable[[], tuple[str, int] | None]) -> None:
        """`over`: why no more may be spent and the exit status, None while more may be. Call it in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._overspent = over

    def may_continue(self) -> bool:
        """Return False once the run was asked to end or a cap on its spending is reached."""
        if not self.asked and (over := self._overspent()) is not None:
            self.request(*over)
        return not self.asked

    def may_start(self) -> bool:
        """Say whether one more trial may start; if so, it is counted. The last trials under `max_trials` may finish."""
        if not self.asked and self._trials_left == 0:
            self._request(f"max_trials={self._max_trials} were started", LIMIT_STATUS, lets_end=True)
        if not self.may_continue():
            return False
        if self._trials_left is not None:
            self._trials_left -= 1
        return True

    def request(self, why: str, status: int) -> None:
        """Ask the run to end. Outside of `polled` this cancels the task of `cancels`."""
        self._request(why, status, lets_end=False)

    def request_soon(self, why: str, status: int) -> None:
        """`request` from any thread; after `cancels` or `limit_spending`."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.request, why, status)

    def cancels(self, task: "asyncio.Task[Any]") -> None:
        """Set the task that a request cancels, except within `polled`."""
        self._cancel, self._loop = task.cancel, task.get_loop()

    @contextlib.contextmanager
    def polled(self) -> Iterator[None]:
        """Cancel nothing at a request within the block: the caller looks at `asked` and ends in order."""
        cancel, self._cancel = self._cancel, lambda: None
        try:
            yield
        finally:
            self._cancel = cancel

    async def wait(self) -> None:
        await self._asked.wait()

    async def stopped(self, *, trials: bool = False) -> NoReturn:
        """Return an end for `run_until`: raises Stopped once the run is asked to stop.

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
        how = "may finish" if lets_end else "are cancelled"
        self._say(f"{why}: running trials {how}, then the weights are saved; a second Ctrl-C leaves at once")
        self._cancel()


def drop_output(stream: IO[str]) -> None:
    """Drop what the stream holds and gets from now on: nothing takes it any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def signals_to(stop: Stop) -> Iterator[None]:
    """Ask `stop` at SIGNALS within the block; a second one, unless SIGHUP, exits; ignored signals stay so.

    Outside of the main thread, which alone gets signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    first: float | None = None

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            loop.call_soon_threadsafe(stop.request, signal.Signals(number).name, SIGNAL_STATUS)
        elif number != signal.SIGHUP and time.monotonic() - first > ONE_PRESS_SEC:
            # in a signal handler: no buffered output, no clean-up, whatever the loop is doing
            cursor = SHOW_CURSOR if os.isatty(2) else ""
            with contextlib.suppress(OSError):  # the terminal is gone
                os.write(2, f"{cursor}\nstopped immediately{stop.resume_hint and '; '}{stop.resume_hint}\n".encode())
            os._exit(SIGNAL_STATUS)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def run_until[T](work: Coroutine[Any, Any, T], *ends: End) -> T:
    """Return the result of `work`.

    When one of `ends` raises first, `work` is cancelled, its clean-up awaited, and that is raised.

    Work is not started when an end is due already. Where both fail at once, the end counts: it names the cause.
    """
    watchers = [asyncio.create_task(end) for end in ends]
    tasks: list[asyncio.Task[Any]] = [*watchers]
    call = None
    try:
        await asyncio.sleep(0)
        if not any(watcher.done() for watcher in watchers):
            call = asyncio.create_task(work)
            tasks.append(call)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if call.done() and not call.cancelled() and call.exception() is None:
                return call.result()
        return next(task for task in tasks if task.done()).result()
    finally:
        if call is None:
            work.close()  # it was never started
        await cancel_all(tasks)


async def cancel_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel all and await their clean-up. Their errors are ignored."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks it as seen


def first_error(error: BaseException) -> BaseException:
    """Return the error that ended a group; its siblings were only cancelled."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def in_daemon_thread[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function in a daemon thread, so that it cannot delay interpreter exit.

    Cancelling the wait does not stop it. A process that exits drops its connections, so a daemon gives up its build.
    """
    return await asyncio.wrap_future(daemon_future(function, *args, **kwargs))


def daemon_future[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
    """Run `function` in a daemon thread; the future holds its result or its error."""
    future: Future[R] = Future()
    future.set_running_or_notify_cancel()  # from here on the future cannot be cancelled

    def work() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=work, name=getattr(function, "__name__", "waiting"), daemon=True).start()
    return future
