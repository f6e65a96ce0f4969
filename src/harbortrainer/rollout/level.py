"""The number of agents that run at once with `n_parallel_envs=auto`: it follows tokens a second. Pure.

Additive increase, multiplicative decrease (Chiu & Jain 1989), after a slow start that doubles (Jacobson 1988). Every
change is a try: the next window decides whether it stays. More agents stay while tokens a second grow with them by at
least WORTH of their share; fewer agents stay while tokens a second fall by less than that.
"""

from dataclasses import dataclass
from enum import IntEnum

FIRST = 8  # agents at once at the start of a run
WORTH = 0.25  # the least growth of tokens a second, relative to the growth of the limit, for which a try is kept
DECREASE = 0.75
LATE = 1.5  # times the fastest answers: requests wait for each other
LATE_WINDOWS = 2  # in a row, before fewer agents are tried
FASTER = 0.98  # what the fastest answers fade by in each window: prompts become longer in the course of a run
FIRST_HOLD, LONGEST_HOLD = 2, 16  # windows between a try that failed and the next one


class Why(IntEnum):
    """The reason of the limit's last change; the numbers are `rollout/parallel_why`."""

    START = 0
    MORE = 1
    NO_GAIN = 2
    LATENCY = 3
    LOSS = 4
    SLOW_STARTS = 5
    UNUSED = 6
    FEWER = 7

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Why.START: "its start",
    Why.MORE: "tokens a second grew so far",
    Why.NO_GAIN: "more did not raise tokens a second",
    Why.LATENCY: "answers take longer",
    Why.LOSS: "fewer lowered tokens a second",
    Why.SLOW_STARTS: "containers start slowly",
    Why.UNUSED: "too few trials for more",
    Why.FEWER: "as many tokens a second with fewer",
}


@dataclass(frozen=True, slots=True)
class Window:
    """What was measured while the limit was reached. `rate`: sampled tokens a second; `latency`: seconds a token."""

    rate: float
    latency: float


class Level:
    """A number of agents: `limit` is between 1 and `most`; `why` it changed last."""

    def __init__(self, most: int, limit: int | None = None) -> None:
        """`limit`: where an earlier process was; None = FIRST, from which it doubles while that pays."""
        self.most = max(1, most)
        self.limit = min(limit or FIRST, self.most)
        self.why = Why.START
        self._doubling = limit is None
        self._step = _step(self.limit)  # more at once, when it does not double
        self._base: tuple[int, Window] | None = None  # the limit that was kept last, and its last window
        self._fastest = float("inf")  # latency
        self._late = 0  # windows in a row
        self._hold, self._held = FIRST_HOLD, 0
        self._next_fewer = False  # whether the next try is of fewer agents

    def judge(self, window: Window) -> bool:
        """Judge the window that ends at `limit`. Returns whether the limit changed."""
        self._fastest = min(self._fastest / FASTER, window.latency)
        self._late = self._late + 1 if window.latency > LATE * self._fastest else 0
        if self._base is None or self.limit == self._base[0]:
            self._base = self.limit, window if self._base is None else _mean(self._base[1], window)
            self._held = max(0, self._held - 1)
            return self._held == 0 and self._try()
        before, base = self._base
        if window.rate < base.rate * (1 + WORTH * (self.limit / before - 1)):
            self._return(Why.NO_GAIN if self.limit > before else Why.LOSS)
            return True
        self._base, self._hold = (self.limit, window), FIRST_HOLD
        if self.limit < before:
            self._held = FIRST_HOLD
            return self._late >= LATE_WINDOWS and self._try()
        return self._try()

    def slow_starts(self) -> bool:
        """Return containers started slowly: whether the limit changed."""
        fewer = max(1, int(DECREASE * self.limit))
        self._base, self._held, self._next_fewer = None, FIRST_HOLD, False
        self._end_doubling(fewer)
        return self._change(fewer, Why.SLOW_STARTS)

    def unused(self) -> bool:
        """Return no window could be measured at `limit`, since too few trials ran: whether the limit changed."""
        if self._base is None or self.limit <= self._base[0]:
            return False
        self._return(Why.UNUSED)
        return True

    def _try(self) -> bool:
        """Another limit: more after fewer failed, fewer after more failed; False = there is none."""
        late, self._late = self._late >= LATE_WINDOWS, 0
        if (late or self._next_fewer) and (fewer := max(1, int(DECREASE * self.limit))) < self.limit:
            self._next_fewer = False
            self._end_doubling(fewer)
            return self._change(fewer, Why.LATENCY if late else Why.FEWER)
        more = 2 * self.limit if self._doubling else self.limit + self._step
        self._next_fewer = self.limit == self.most
        return self._change(min(self.most, more), Why.MORE)

    def _return(self, why: Why) -> None:
        assert self._base is not None
        self._end_doubling(self._base[0])
        self._next_fewer = why is not Why.LOSS
        self._held, self._hold = self._hold, min(2 * self._hold, LONGEST_HOLD)
        self._late = 0
        self._change(self._base[0], why)

    def _end_doubling(self, limit: int) -> None:
        if self._doubling:
            self._doubling, self._step = False, _step(limit)

    def _change(self, limit: int, why: Why) -> bool:
        if limit == self.limit:
            return False
        self.limit, self.why = limit, why
        return True


def _step(limit: int) -> int:
    """A quarter: less is not seen in the noise of a window."""
    return max(2, limit // 4)


def _mean(one: Window, other: Window) -> Window:
    return Window((one.rate + other.rate) / 2, (one.latency + other.latency) / 2)
