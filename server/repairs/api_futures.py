"""Results are looked for every 20 ms, and the database is asked for them only after a change.

Nobody looks for what this process answers itself: `answers` tells it to those who wait.

Upstream: skyrl/tinker/api.py, poll_futures makes a query through SQLAlchemy every 50 ms while any client waits, whether
or not something was stored.
"""

# pyright: reportMissingImports=false
import time
from collections.abc import Iterator
from typing import Any

from skyrl.tinker import api

from repairs.changes import Changes

LOOK_SEC = 0.02
UNCHANGED_SEC = 1.0  # a query also comes without a change: one that failed is not the last
OWN: set[int] = set()  # requests that this process answers
stock_poll = api.poll_futures


def answers(request_id: int, outcome: tuple[Any, Any, str]) -> None:
    """`outcome`: status, type of the request, and the answer's JSON; it is in the database."""
    OWN.discard(request_id)
    for waiter in api.app.state.future_waiters.pop(request_id, ()):
        if not waiter.done():
            waiter.set_result(outcome)


class Waiters:
    """What poll_futures sees of those who wait: nobody while nothing has changed since its last query."""

    def __init__(self, waiters: dict[int, Any], changes: Changes) -> None:
        self._waiters, self._changes = waiters, changes
        self._known, self._asked = set[int](), 0.0

    def __bool__(self) -> bool:
        """Asked once a round, before the query."""
        known, self._known = self._known, set(self)
        if not self._known:
            return False
        asks = self._changes.seen() or not self._known <= known or time.monotonic() - self._asked > UNCHANGED_SEC
        self._asked = time.monotonic() if asks else self._asked
        return asks

    def __iter__(self) -> Iterator[int]:
        return iter(self._waiters.keys() - OWN)

    def pop(self, request_id: int, default: Any) -> Any:
        return self._waiters.pop(request_id, default)


async def poll_futures(db_engine: Any, waiters: dict[int, Any]) -> None:
    """Replaces api.poll_futures: the same with fewer queries."""
    seen: Any = Waiters(waiters, Changes(db_engine.url))
    await stock_poll(db_engine, seen, LOOK_SEC)


def apply() -> None:
    api.poll_futures = poll_futures
