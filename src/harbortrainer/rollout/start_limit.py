"""The number of environments that start at once: it follows how fast they start."""

import logging
import time
from typing import override

from harbortrainer.rollout.slots import Slots

FIRST = 8  # environments that start at once, until their rate has been seen
MOST_PER_CPU = 2
SLOW_START_SEC = 5.0  # a start below this is never slow,
SLOW_RATIO = 5.0  # nor one below this many times the fastest
STARTS_BEFORE_MORE = 8  # good starts in a row before one more at once is tried
STEP = 2  # more at once, beyond FIRST
FASTER = 1.05  # the least growth of the rate for which a step is kept
WINDOWS_HELD = 8  # before the next try, after a step that did not help
log = logging.getLogger("harbortrainer")


def most_starts(cpus: int) -> int:
    """Return the most starts at once: beyond the processors' number they only wait; few still overlap waits."""
    return max(FIRST, MOST_PER_CPU * cpus)


class StartLimit(Slots):
    """Allows `limit` starts at once, at most `most`.

    Additive increase, multiplicative decrease (Chiu & Jain 1989): other programs use the daemon too. A slow start
    halves the limit. Good starts bring it back to FIRST. Beyond that it grows while starts wait and their rate grows.
    """

    def __init__(self, most: int) -> None:
        super().__init__(min(FIRST, most))
        self._most = most
        self._fastest = float("inf")
        self._good = 0
        self._halved = 0.0  # clock time of the last halving
        self._began: float | None = None  # of the window: successive starts that all had others waiting behind them
        self._ended = 0  # starts of the window
        self._rate = 0.0  # before the last step
        self._stepped = False  # the window is the first at its level
        self._held = 0  # windows until the next step

    @override
    def release(self, seconds: float | None = None, *, disturbed: bool = False) -> None:
        """`seconds`: how long the start took, without its waits; None = it failed or was cancelled: it is not counted.

        `disturbed`: removals may have made it slow, so that it does not halve the limit.
        """
        if seconds is not None:
            self._judge(seconds, disturbed)
        super().release()

    def _judge(self, seconds: float, disturbed: bool) -> None:
        self._fastest = min(self._fastest, seconds)
        if seconds > max(SLOW_START_SEC, SLOW_RATIO * self._fastest):
            if not disturbed:
                self._slow_down(seconds)
            return
        self._good += 1
        if self.limit < min(FIRST, self._most):
            if self._good >= STARTS_BEFORE_MORE:
                self._good = 0
                self.limit += 1
        else:
            self._count_start()

    def _count_start(self) -> None:
        """One good start at a limit of FIRST or more: a window ends after as many as the limit, twice."""
        if not self._waiting:  # the limit did not hold any back
            self._began = None
            return
        now = time.monotonic()
        if self._began is None:
            self._began, self._ended = now, 0
            return
        self._ended += 1
        if self._ended >= 2 * self.limit and now > self._began:
            self._step(self._ended / (now - self._began))
            self._began, self._ended = now, 0

    def _step(self, rate: float) -> None:
        """At the end of a window with so many starts a second."""
        if self._stepped and rate < FASTER * self._rate:  # the last step did not help
            self.limit, self._stepped, self._held = max(FIRST, self.limit - STEP), False, WINDOWS_HELD
        elif self._held:
            self._held -= 1
        elif self.limit < self._most:
            self.limit, self._rate, self._stepped = min(self._most, self.limit + STEP), rate, True
        else:
            self._stepped = False

    def _slow_down(self, seconds: float) -> None:
        self._good, self._began, self._stepped = 0, None, False
        now = time.monotonic()
        if self.limit == 1 or now - self._halved < seconds:  # it was under way when the last halving came
            return
        self._halved = now
        before, self.limit = self.limit, max(1, self.limit // 2)
        self._held = WINDOWS_HELD
        log.warning(
            "environments start slowly (%.1f s, fastest %.1f s): %d at once instead of %d",
            seconds, self._fastest, self.limit, before,
        )  # fmt: skip
