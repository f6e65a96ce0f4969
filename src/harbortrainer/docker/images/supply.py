"""Makes the images of tasks ahead of their trials, in the order in which these come, beside the trials."""

import asyncio
import contextlib
import itertools
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import requests
from docker.errors import DockerException, StreamParseError

from harbortrainer.docker.daemon import call
from harbortrainer.docker.images.builds import ImageError, LateError
from harbortrainer.errors import EnvironmentFault, one_line
from harbortrainer.learning.treatment import FIRST, PASSING, UNSUPPLIED, too_many
from harbortrainer.stopping import cancel_all

PAUSES_SEC = (5.0, 20.0, 60.0)  # after a fault of network, disk or daemon; then always the last one
SAY_SEC, SAY_LESS_SEC = 30.0, 300.0  # between two lines on progress, while trials wait for images, and else
MOST_AT_ONCE = 16
_log = logging.getLogger("harbortrainer")

Make = Callable[[Path], Awaitable[bool]]  # makes the images of a task; whether Docker lacked one. Raises ImageError
TOO_SMALL = "task images: no more than those of the running trials have room (images_gb, or a disk that is nearly full)"
Say = Callable[[str], object]


def builds_at_once() -> int:
    """Return half of the processors, 2 to MOST_AT_ONCE."""
    return min(max(2, (os.cpu_count() or 2) // 2), MOST_AT_ONCE)


class Window(Protocol):
    """What bounds the images on the daemon's disk: `window.ImageWindow`. Its methods block."""

    def make_room(
        self, task: Path, making: int, held: Collection[Path], ahead: Sequence[Path]
    ) -> tuple[bool, set[Path]]: ...
    def hold(self, task: Path) -> contextlib.ExitStack: ...


@dataclass(slots=True)
class _Order:
    """One task. `lacking`: why it has no image; None = not known yet. `holders`: groups that use or await it."""

    task: Path
    lacking: str | None = None
    holders: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    began: float = 0.0  # the loop's time at which its images were begun


class ImageSupply:
    """Makes images, `n_parallel` at once: those that trials wait for, then those of `expect`, in its order.

    A fault of the network, the disk or the daemon is tried again: for `patience_sec` while no image can be made, but
    only as often as PAUSES_SEC says while others are, or while no other task has such a fault. Use it as a context: at
    its end no build runs.
    """

    def __init__(
        self,
        make: Make,
        n_parallel: int,
        patience_sec: float,
        say: Say,
        n_tasks: int,
        window: Window | None = None,
        push: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`n_tasks`: of the run; `say` gets lines for the user; `window`: None = all images have room; `push`
        sends what was made to a registry, while the task's images stay and its trials run.
        """
        self._make, self._n, self._patience_sec, self._say = make, n_parallel, patience_sec, say
        self._n_tasks = n_tasks
        self._orders: dict[Path, _Order] = {}
        self._waiting: dict[Path, None] = {}
        self._expected: Sequence[Path] = ()
        self._making: dict[Path, asyncio.Task[None]] = {}
        self._pausing = 0  # of `_making`
        self._rested = deque[asyncio.Event]()  # of those that pause no more, and wait for a place
        self._made_at = 0.0  # the loop's time at which an image was made last
        self._seconds: list[float] = []  # that images took
        self._fault: EnvironmentFault | None = None
        self._telling: asyncio.Task[None] | None = None
        self._closed = False
        self._window, self._push = window, push
        self._at_fault = set[Path]()  # tasks whose last try met a fault of network, disk or daemon
        self._pushing = asyncio.Lock()
        self._evicting = asyncio.Lock()
        self._full = False  # until trials end, what is only expected has no room
        self._freed = asyncio.Event()  # trials or builds have ended since it was cleared
        self._small = False  # TOO_SMALL was said

    async def __aenter__(self) -> Self:
        self._telling = asyncio.create_task(self._tell(), name="images")
        return self

    async def __aexit__(self, fault: object, *_: object) -> None:
        self._closed = True
        pushed = [making for task, making in self._making.items() if self._order(task).settled.is_set()]
        if fault is None:
            await asyncio.gather(*pushed)
        await cancel_all([*self._making.values(), *filter(None, [self._telling])])

    def expect(self, tasks: Sequence[Path]) -> None:
        """Note that trials of these tasks come next, in this order."""
        self._expected = list(dict.fromkeys(tasks))
        self._full = False
        self._fill()

    @contextlib.asynccontextmanager
    async def supplied(self, task: Path) -> AsyncIterator[str]:
        """Wait for the images of a task, which stay within the block; yields "", or why they cannot be made.

        Raises EnvironmentFault when too many of the first tasks have none.
        """
        order = self._order(task)
        order.holders += 1
        held = await self._hold(task)
        if (order.lacking or "").startswith(PASSING) and self._fault is None:
            order.lacking, order.settled = None, asyncio.Event()
        try:
            if not order.settled.is_set():
                self._waiting[task] = None
                self._fill()
                await order.settled.wait()
                self._waiting.pop(task, None)
            if self._fault is not None:
                raise self._fault
            yield order.lacking or ""
        finally:
            held.close()
            order.holders -= 1
            self._waiting.pop(task, None)
            self._expected = [one for one in self._expected if one != task]
            self._full = False
            self._freed.set()
            self._fill()

    async def _hold(self, task: Path) -> contextlib.ExitStack:
        if self._window is None:
            return contextlib.ExitStack()
        held = await call(self._window.hold, task)
        async with self._evicting:  # a removal that began before is over, and noted
            return held

    @property
    def failed(self) -> dict[str, str]:
        """Names of the tasks without images, and why."""
        return {order.task.name: order.lacking for order in self._orders.values() if order.lacking}

    def _order(self, task: Path) -> _Order:
        return self._orders.setdefault(task, _Order(task))

    def _fill(self) -> None:
        while not self._closed and len(self._making) - self._pausing < self._n:
            if self._rested:
                self._pausing -= 1
                self._rested.popleft().set()
            elif order := self._next():
                self._making[order.task] = asyncio.create_task(self._settle(order), name=f"image of {order.task.name}")
            else:
                break

    def _next(self) -> _Order | None:
        orders = map(self._order, (*self._waiting, *(() if self._full else self._expected)))
        return next((one for one in orders if not one.settled.is_set() and one.task not in self._making), None)

    async def _settle(self, order: _Order) -> None:
        """Make the images of one task, or find out that they cannot be made."""
        order.began = asyncio.get_running_loop().time()
        try:
            if not await self._has_room(order):
                return
            order.lacking = await self._tried(order)
            if order.lacking:
                _log.warning("task %s is left out of the run: %s", order.task.name, order.lacking)
            self._judge()
            order.settled.set()
            if self._push and not order.lacking:
                await self._pushed(self._push)
        finally:
            del self._making[order.task]
            self._freed.set()
            self._fill()

    async def _has_room(self, order: _Order) -> bool:
        """Remove images that are needed later. Returns False where the order can wait, too; one that cannot waits here
        for the ends of trials.
        """
        while self._window is not None:
            async with self._evicting:
                self._freed.clear()
                at_once = len(self._making) - self._pausing
                if await self._evict(order, at_once, self._window):
                    return True
            if not order.holders:
                self._full = True
                return False
            if not self._small:
                self._small = True
                self._say(TOO_SMALL)
            if at_once <= 1 and not self._ending():
                return True
            await self._paused(self._until_freed())
        return True

    def _ending(self) -> bool:
        """Say whether trials or pushes are under way, whose images can be removed after them."""
        orders = self._orders.values()
        return any(one.settled.is_set() and (one.holders or one.task in self._making) for one in orders)

    async def _evict(self, order: _Order, at_once: int, window: Window) -> bool:
        """Whether the images of the task have room now."""
        held = {one.task for one in self._orders.values() if one.holders or one.task in self._making}
        if not order.holders:  # what comes before it stays
            held |= {*itertools.takewhile(lambda task: task != order.task, self._expected)}
        later = dict.fromkeys((*self._expected, *reversed(self._orders)))
        ahead = [task for task in later if task not in held]
        try:
            fits, gone = await call(window.make_room, order.task, at_once, held, ahead)
        except (DockerException, requests.RequestException) as error:
            _log.debug("images: %s", error)
            return True  # the build has the daemon's fault, too
        for one in map(self._order, gone):
            one.lacking, one.settled = None, asyncio.Event()
        return fits

    async def _pushed(self, push: Callable[[], Awaitable[None]]) -> None:
        self._pausing += 1
        self._fill()
        try:
            async with self._pushing:
                await push()
        finally:
            self._pausing -= 1

    async def _until_freed(self) -> None:
        await self._freed.wait()

    async def _tried(self, order: _Order) -> str:
        try:
            return await self._retried(order)
        finally:
            self._at_fault.discard(order.task)

    async def _retried(self, order: _Order) -> str:
        task = order.task
        loop = asyncio.get_running_loop()
        first_fault, tries = 0.0, 0
        while True:
            began = loop.time()
            try:
                if await self._make(task):
                    self._made_at = loop.time()
                    self._seconds.append(self._made_at - began)
                return ""
            except ImageError as error:
                why, passing, of_daemon = error.last_lines, error.passing, False
                if isinstance(error, LateError) and not tries:
                    tries = 1
                    continue
            except (DockerException, requests.RequestException, StreamParseError) as error:  # the daemon's end
                why, passing, of_daemon = one_line(error), True, True
            tries, first_fault = tries + 1, first_fault or loop.time()
            if passing:
                self._at_fault.add(task)
            alone = self._made_at > first_fault or (self._at_fault == {task} and not of_daemon)
            if not passing or (alone and tries > len(PAUSES_SEC)) or loop.time() - first_fault > self._patience_sec:
                return f"{PASSING if passing else UNSUPPLIED}{why}"
            pause = PAUSES_SEC[min(tries, len(PAUSES_SEC)) - 1]
            _log.warning("task %s: %s; tried again in %g s", task.name, why, pause)
            await self._paused(asyncio.sleep(pause))
            await self._has_room(order)

    async def _paused(self, pause: Coroutine[Any, Any, None]) -> None:
        """Let other images be made meanwhile, and until this one may be made again."""
        self._pausing += 1
        self._fill()
        place = asyncio.Event()
        try:
            await pause
            self._rested.append(place)
            self._fill()
            await place.wait()
        finally:
            self._pausing -= not place.is_set()

    def _judge(self) -> None:
        """End the run when too many of its first tasks have no image: the machine, not the tasks, is at fault then."""
        known = [order for order in self._orders.values() if order.lacking is not None]
        failed = self.failed
        if not (lines := too_many(failed, len(known), self._n_tasks)):
            return
        self._fault = EnvironmentFault(f"{lines}\n{len(failed)} of the first {len(known)} tasks have no image")
        for order in self._orders.values():
            order.settled.set()

    async def _tell(self) -> None:
        """Say how far the images ahead are."""
        loop, last = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(SAY_SEC)
            if self._making and (self._waiting or loop.time() - last >= SAY_LESS_SEC):
                last = loop.time()
                self._say(self.progress)

    @property
    def progress(self) -> str:
        """One line: images made, those to come, and how long they will take."""
        ahead = dict.fromkeys((*self._waiting, *self._expected))
        left = sum(not self._order(task).settled.is_set() for task in ahead)
        line = f"task images: those of {len(ahead) - left} of the next {len(ahead)} tasks are ready"
        making = [order for order in map(self._order, self._making) if not order.settled.is_set()]
        line += f", {len(making)} under way"
        if oldest := min(making, key=lambda order: order.began, default=None):
            line += f" ({oldest.task.name} for {asyncio.get_running_loop().time() - oldest.began:.0f} s)"
        if self._seconds and left:
            mean = sum(self._seconds[-FIRST:]) / len(self._seconds[-FIRST:])
            line += f"; about {max(1, round(left * mean / self._n / 60))} min for the others"
        if (waiting := len(self._waiting)) > 0:
            line += f"; {waiting} tasks wait for theirs"
        return line if not self.failed else f"{line}; {len(self.failed)} tasks are left out"
