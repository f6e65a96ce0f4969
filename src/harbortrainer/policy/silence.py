"""When the server answered nobody, as one sampler saw it."""

import time
from collections import deque

SILENT_SEC, SILENT_TIMES = 60.0, 2.0  # without any answer, and that many times the longest of the newest answers
NEWEST, KEPT = 128, 16  # answers that tell what is usual; silences that are remembered


class Silences:
    """The times in which requests waited and none was answered, for longer than an answer may take."""

    def __init__(self) -> None:
        self._heard_at = 0.0  # clock time of the newest answer, or of the first request since nobody waited
        self._newest: deque[float] = deque(maxlen=NEWEST)  # seconds of answers
        self._past: deque[tuple[float, float]] = deque(maxlen=KEPT)  # clock times of begin and end

    def asked(self, *, first: bool) -> None:
        """Before a request. `first`: no other waits."""
        if first:
            self._heard_at = time.monotonic()

    def answered(self, began: float) -> None:
        """After an answer to the request that began at that clock time."""
        now = time.monotonic()
        if self._too_long(now):
            self._past.append((self._heard_at, now))
        self._heard_at = now
        self._newest.append(now - began)

    def since(self, began: float) -> float:
        """Seconds since that clock time in which the server was silent."""
        now = time.monotonic()
        current = [(self._heard_at, now)] if self._too_long(now) else []
        return sum(max(0.0, end - max(start, began)) for start, end in [*self._past, *current])

    def _too_long(self, now: float) -> bool:
        silent = now - self._heard_at
        return silent > SILENT_SEC and silent > SILENT_TIMES * max(self._newest, default=0.0)
