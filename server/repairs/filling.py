"""When a wave of samples begins: at once, or when those who were just answered have asked again.

Nothing of skyrl is imported here.
"""

SHARE = 0.15  # of the last wave's seconds, for which a wave waits at most
LEAST_SEC = 2.0  # of a wave; shorter ones are not worth waiting for


class Filling:
    """Trials whose turns take turns would each run half-empty waves, which cost as much as full ones."""

    def __init__(self) -> None:
        self._ended, self._seconds, self._answered, self._newest = 0.0, 0.0, 0, 0
        self._expected: int | None = None  # requests of the next wave

    def ended(self, now: float, requests: int, seconds: float, newest: int) -> None:
        """A wave is done. `newest`: the number of the last request that had arrived."""
        self._ended, self._seconds, self._answered, self._newest = now, seconds, requests, newest
        self._expected = None

    def is_full(self, now: float, waiting: list[int], seats: int) -> bool:
        """Whether to compute the requests with these numbers now. `seats`: of a wave; 0: no limit.

        Who asked while the last wave ran is another than those whom it answered, and these will ask again.
        """
        if self._expected is None:
            self._expected = self._answered + sum(number <= self._newest for number in waiting)
        expected = min(self._expected, seats) if seats > 0 else self._expected
        patience = SHARE * self._seconds if self._seconds >= LEAST_SEC else 0.0
        return len(waiting) >= expected or now - self._ended >= patience
