"""Requests of one model are computed in the order in which they came, and the engine does not sleep between them.

Upstream: skyrl/tinker/engine.py, TinkerEngine.process_pending_requests_once looks for optimizer steps, then for passes,
then for single requests. A request that arrives in between is seen by some of these and not by others: a step is taken
before the pass that was sent before it, or a pass is computed before the step that was sent before it. Here a round
looks only at what had arrived when it began. process_pending_requests sleeps 0.1 s after every round, also when the
next request of a chain waits already. Ten times a second it makes eight queries, also without any client, which take 4%
of a core; here only after a change of the database, and between chunks of samples. A database that is locked, or whose
disk is full, ends the loop there and not here.
"""

# pyright: reportMissingImports=false
import time
from typing import Any

from skyrl.tinker.db_models import FutureDB
from skyrl.tinker.engine import TinkerEngine
from skyrl.utils.log import logger
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, func, select

from repairs.changes import Changes

IDLE_SEC, BUSY_SEC, LOST_SEC = 0.1, 0.005, 1.0
UNCHANGED_SEC = 1.0  # a round also comes without a change: silent sessions end by the clock
FINDERS = ("find_batchable_model_passes", "find_batchable_sample", "find_single_requests")
stock_once = TinkerEngine.process_pending_requests_once
stock_batch = TinkerEngine.process_batch_requests
stock_single = TinkerEngine.process_single_requests


def arrived(self: Any) -> int:
    """The newest request; ids grow in the order of arrival."""
    with Session(self.db_engine) as session:
        return session.exec(select(func.max(FutureDB.request_id))).one() or 0


def process_pending_requests_once(self: Any) -> None:
    self.newest = arrived(self)
    stock_once(self)


def until_newest(find: Any) -> Any:
    def find_arrived(self: Any, *args: Any) -> dict[str, Any]:
        """Wraps one of FINDERS: what has arrived since the round began is left to the next."""
        return {key: item for key, item in find(self, *args).items() if int(key) <= self.newest}

    return find_arrived


def process_batch_requests(self: Any, requests: dict, processor: Any, name: str, per_model: bool = False) -> None:
    self.trained |= bool(requests) and name != "sample"
    stock_batch(self, requests, processor, name, per_model=per_model)


def process_single_requests(self: Any, requests: dict) -> None:
    self.trained |= bool(requests)
    stock_single(self, requests)


def samples(self: Any) -> bool:
    """Whether samples are under way (engine_seating)."""
    return bool(getattr(self, "_sampler", None)) and self._sampler.busy


def process_pending_requests(self: Any) -> None:
    """Replaces TinkerEngine.process_pending_requests."""
    changes, began = Changes(self.db_engine.url), -UNCHANGED_SEC
    while True:
        if not changes.seen() and not samples(self) and time.monotonic() - began < UNCHANGED_SEC:
            time.sleep(IDLE_SEC)
            continue
        self.trained, began = False, time.monotonic()
        try:
            self.process_pending_requests_once()
        except OperationalError as error:
            logger.warning(f"The database does not answer: {error.orig}; it is asked again")
            time.sleep(LOST_SEC)
        if not samples(self):
            time.sleep(BUSY_SEC if self.trained else IDLE_SEC)


def apply() -> None:
    TinkerEngine.process_pending_requests_once = process_pending_requests_once
    for name in FINDERS:
        setattr(TinkerEngine, name, until_newest(getattr(TinkerEngine, name)))
    TinkerEngine.process_batch_requests = process_batch_requests
    TinkerEngine.process_single_requests = process_single_requests
    TinkerEngine.process_pending_requests = process_pending_requests
