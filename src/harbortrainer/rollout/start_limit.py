"""The number of environments that start at once: it follows how fast they start."""

import logging
import time
from typing import override

from harbortrainer.rollout.slots import Slots

FIRST = 8  # environments that start at once, until some have started
MOST_PER_CPU = 2
SLOW_START_SEC = 5.0  # a start below this is never slow,
SLOW_RATIO = 5.0  # nor one below this many times the fastest
STARTS_BEFORE_MORE = 8  # good starts in a row before one more at once is allowed
log = logging.getLogger("harbortrainer")


def most_starts(cpus: int) -> int:
    """Return the most starts at once: beyond the processors' number they only wait; few still overlap waits."""
    return max(FIRST, MOST_PER_CPU * cpus)


class StartLimit(Slots):
    """Allows `limit` starts at once, at most `most`.

    Additive increase, multiplicative decrease (Chiu & Jain 1989): other programs use the daemon too. A slow start
    halves the limit, good ones raise it.
    """

    def __init__(self, most: int) -> None:
        super().__init__(min(FIRST, most))
        self._most = most
        self._fastest = float("inf")
        self._good = 0
        self._halved = 0.0  # clock time of the last halving

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
        if self._good >= STARTS_BEFORE_MORE and self.limit < self._most:
            self._good = 0
            self.limit += 1

    def _slow_down(self, seconds: float) -> None:
        self._good = 0
        now = time.monotonic()
        if self.limit == 1 or now - self._halved < seconds:  # it was under way when the last halving came
            return
        self._halved = now
        before, self.limit = self.limit, max(1, self.limit // 2)
        log.warning(
            "environments start slowly (%.1f s, fastest %.1f s): %d at once instead of %d",
            seconds, self._fastest, self.limit, before,
        )  # fmt: skip
