"""When the server could not answer, as this process saw it: it was silent, or it compiled."""

import asyncio
import heapq
from collections import deque
from collections.abc import Mapping
from typing import Any

SIGN_SEC = 5.0  # between two signs of life, where the server is looked at every 2 s
SILENT_SEC, SILENT_TIMES = 60.0, 2.0  # without any answer, and that many times what is usual
NEWEST, ODD, KEPT = 128, 8, 1024  # waits for an answer that show what is usual, less so many - 1; spans remembered


def _now() -> float:
    return asyncio.get_running_loop().time()


class Spans:
    """Times that are over; none counts twice."""

    def __init__(self) -> None:
        self._spans: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def add(self, begin: float, end: float) -> None:
        """`end`: not before that of an earlier span."""
        while self._spans and self._spans[-1][1] >= begin:
            begin = min(begin, self._spans.pop()[0])
        self._spans.append((begin, end))

    def within(self, begin: float, end: float) -> float:
        """Return seconds between two times that a span covers."""
        covered = 0.0
        for first, last in reversed(self._spans):
            if last <= begin:
                break
            covered += max(0.0, min(last, end) - max(first, begin))
        return covered


class Silences:
    """The times in which the server could not answer, on the event loop's clock.

    It was silent while no sign of life came for SIGN_SEC: an answer, or a look at it, which the run takes every 2 s. It
    was silent too while requests waited and none was answered for longer than usual, whatever a look showed: what
    computes answers may hang behind an API that works. One outage delays all answers in flight but is one wait, so it
    does not change what is usual.
    """

    def __init__(self) -> None:
        self.waiting = 0  # requests
        self._silent, self._lost = Spans(), Spans()
        self._waits: deque[float] = deque(maxlen=NEWEST)  # seconds from one answer to the next, while requests waited
        self._answered_at = 0.0  # or the first request since none waited
        self._sign_at: float | None = None  # None = no look found it alive
        self._compiled: float | None = None  # seconds so far, by the server's own count
        self._compiling_at: float | None = None  # the last look, if it showed a compilation

    def asked(self) -> None:
        """Note a request that begins."""
        if not self.waiting:
            self._answered_at = _now()
        self.waiting += 1

    def answered(self) -> None:
        """Note that a request is answered; `ended` follows."""
        now = _now()
        self._sign(now)
        waited = self._own_wait(now)
        self._end_wait(now)
        self._waits.append(waited)
        self._answered_at = now

    def ended(self) -> None:
        """Note the end of a request, whether it was answered or not."""
        if self.waiting == 1:
            self._end_wait(_now())
        self.waiting -= 1

    def looked(self, load: Mapping[str, Any] | None) -> float:
        """Note a look at the server. `load`: its report on its work, None = it did not answer.

        Returns seconds of the silence that this look has ended, 0 = none.
        """
        if load is None:
            return 0.0
        now = _now()
        ended = self._sign(now)
        self._sign_at = now
        compiling = float(load.get("compiling_seconds") or 0.0)
        total = float(load.get("compile_seconds") or 0.0) + compiling
        before = total - compiling if self._compiled is None else self._compiled
        if spent := total - before if total >= before else total:  # less: the server was started again
            self._lost.add(now - spent, now)
        self._compiled, self._compiling_at = total, now if compiling else None
        return ended

    def lost(self, began: float) -> float:
        """Return seconds since then in which the server could not answer.

        What the next look decides counts: the time since the last sign of life, or since a look at a compilation.
        """
        now = _now()
        begins = [at for at in (self._sign_at, self._compiling_at, self._waits_since(now)) if at is not None]
        begin = max(began, min(begins, default=now))
        return self._lost.within(began, begin) + now - begin

    def silent(self, began: float) -> float:
        """Return seconds since then in which the server was silent for certain."""
        now = _now()
        begin = max(began, now - self.silent_now)
        return self._silent.within(began, begin) + now - begin

    @property
    def silent_now(self) -> float:
        """Seconds of the silence that lasts; 0 = none."""
        now = _now()
        unseen = now - self._sign_at if self._sign_at is not None else 0.0
        since = self._waits_since(now)
        return max(unseen if unseen > SIGN_SEC else 0.0, now - since if since is not None else 0.0)

    def _sign(self, now: float) -> float:
        """Seconds of the silence that a sign of life ends. Where nobody looks, an answer is no sign."""
        if self._sign_at is None:
            return 0.0
        unseen, self._sign_at = now - self._sign_at, now
        if unseen <= SIGN_SEC:
            return 0.0
        self._silence(now - unseen, now)
        return unseen

    def _end_wait(self, now: float) -> None:
        if (since := self._waits_since(now)) is not None:
            self._silence(since, now)

    def _silence(self, begin: float, end: float) -> None:
        self._silent.add(begin, end)
        self._lost.add(begin, end)

    def _waits_since(self, now: float) -> float | None:
        """The last answer, if requests have waited too long since."""
        usual = heapq.nlargest(ODD, self._waits)[ODD - 1] if len(self._waits) >= ODD else 0.0
        too_long = self.waiting and self._own_wait(now) > max(SILENT_SEC, SILENT_TIMES * usual)
        return self._answered_at if too_long else None

    def _own_wait(self, now: float) -> float:
        """Seconds since the last answer, without those that are lost for another reason."""
        return now - self._answered_at - self._lost.within(self._answered_at, now)
