"""Samples take seats while others are sampled, and each is answered when it has ended.

Upstream: skyrl/tinker/engine.py, TinkerEngine.process_batch_requests answers a wave of samples when the last of them
has ended; whoever asks meanwhile waits, though seats are free.
Here a round of the engine's loop gives free seats to those who wait and samples a chunk. All other work waits until
nobody sits: it may need the memory, and weights that are sampled must not change. Samples of a client that is silent
give way to those of others, and are dropped when its session is over.
"""

# pyright: reportMissingImports=false
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from skyrl.backends.jax import JaxBackendImpl
from skyrl.tinker import types
from skyrl.tinker.db_models import FutureDB, RequestStatus, SamplingSessionDB, SessionDB
from skyrl.tinker.engine import TinkerEngine, prepare_sample_batch
from skyrl.utils.log import logger
from sqlmodel import col, func, or_, select

from repairs.engine_finite_samples import NOT_FINITE, is_finite
from repairs.engine_requests import FAILURES
from repairs.engine_seats import Row, rows_of

SILENT_SEC = 25.0  # the SDK's heartbeats come every 10 s
GONE = types.ErrorResponse(error="the client of this request has gone", status="failed")
Requests = dict[str, tuple[str, Any]]
stock_process = TinkerEngine.process_batch_requests
stock_single = TinkerEngine.process_single_requests
stock_find = TinkerEngine.find_batchable_sample


class Sampling:
    """In the place of skyrl's _ContinuousSampler: requests whose rows sit or wait for a seat."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.seats = engine, engine.backend.seats
        self._rows: dict[str, list[Row]] = {}
        self._silent: set[str] = set()  # requests whose clients were not heard of

    @property
    def busy(self) -> bool:
        return bool(self._rows)

    @property
    def inflight_ids(self) -> set[str]:
        return {*self._rows, *self._silent}

    def _wants_more(self) -> bool:
        """Whether fewer wait than there may be seats."""
        return len(self.seats.queue) < max(1, self.engine.backend.config.sample_max_num_sequences)

    def start(self, requests: Requests) -> None:
        if requests:
            batch = prepare_sample_batch(requests, self.engine.config.checkpoints_base)
            for row in rows_of(batch):
                self._rows.setdefault(row.key, []).append(row)
                self.seats.queue.append(row)

    def round(self) -> None:
        """Samples a chunk and answers those who have ended."""
        try:
            ended = self.seats.step()
        except FAILURES as error:
            self._alone(error)
            return
        errors = {row.key: row.error for row in ended if row.error}
        self._answer({row.key: None for row in ended} | errors)

    def drain(self, reason: str = "") -> None:
        """Until nobody sits. Who has not begun, or whose client is silent, will be found again."""
        self._release([key for key, rows in self._rows.items() if not self.seats.has_begun(rows)])
        self._release(self._silent)
        while self.busy:
            self.round()

    def _release(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            if self._rows.pop(key, None):
                self.seats.drop(key)

    def find(self, session: Any) -> Requests:
        """Who waits, of the clients that are there; of others where nobody else asks."""
        over, self._silent = left(session)
        self._release(over)
        if over:
            self.engine._complete_futures(dict.fromkeys(over, GONE))
        if not self._wants_more() and self._silent.isdisjoint(self._rows):
            return {}
        found = stock_find(self.engine, session)
        if found:
            self._release(self._silent)
        elif not self._rows and self._silent:
            self._silent = set()
            found = stock_find(self.engine, session)
        return found if self._wants_more() else {}

    def _answer(self, ended: dict[str, Exception | None]) -> None:
        """Requests that have no row left to sample, or one that failed."""
        results = {}
        for key, error in ended.items():
            rows = self._rows[key]
            if error is not None:
                logger.warning(f"Request {key} failed: {error}")
                self.seats.drop(key)
                results[key] = failure(error)
            elif all(row.reason for row in rows):
                output = types.SampleOutput(sequences=[row.sequence() for row in rows])
                results[key] = output if is_finite(output) else types.ErrorResponse(error=NOT_FINITE, status="failed")
        for key in results:
            del self._rows[key]
        if results:
            self.engine._complete_futures(results)

    def _alone(self, error: Exception) -> None:
        """One request after the other, so that one that cannot be computed fails alone."""
        logger.warning(f"Samples of {len(self._rows)} requests failed ({error}); they are done one by one")
        for key, rows in list(self._rows.items()):
            for row in rows:
                row.restart()
            try:
                self.seats.run(rows)
                self._answer({key: None})
            except FAILURES as own:
                logger.exception(f"Request {key} failed: {own}")
                self._answer({key: own})


def left(session: Any) -> tuple[set[str], set[str]]:
    """Samples of sessions that are over, and of those that were not heard of for SILENT_SEC."""
    owner = col(SamplingSessionDB.sampling_session_id) == FutureDB.request_data["sampling_session_id"].as_string()
    heard = func.coalesce(SessionDB.last_heartbeat_at, SessionDB.created_at)
    silent = heard < datetime.now(UTC) - timedelta(seconds=SILENT_SEC)
    rows = session.exec(
        select(FutureDB.request_id, SessionDB.status)
        .join(SamplingSessionDB, owner)
        .join(SessionDB, col(SessionDB.session_id) == col(SamplingSessionDB.session_id))
        .where(FutureDB.request_type == types.RequestType.SAMPLE, FutureDB.status == RequestStatus.PENDING)
        .where(or_(SessionDB.status != "active", silent))
    ).all()
    over = {str(key) for key, status in rows if status != "active"}
    return over, {str(key) for key, _ in rows} - over


def failure(error: Exception) -> types.ErrorResponse:
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return types.ErrorResponse(error=text, status="failed")


def process_batch_requests(
    self: Any, requests: Requests, processor: Callable, name: str, per_model: bool = False
) -> None:
    """Wraps TinkerEngine.process_batch_requests."""
    sampling = self._sampler = self._sampler or Sampling(self)
    scored = {key: item for key, item in requests.items() if name != "sample" or item[1].prompt_logprobs}
    if scored:
        sampling.drain()
        stock_process(self, scored, processor, name, per_model=per_model)
    if name == "sample":
        errors, valid = self._filter_valid_requests({key: one for key, one in requests.items() if key not in scored})
        if errors:
            self._complete_futures(errors)
        sampling.start(valid)
        if sampling.busy:
            sampling.round()


def process_single_requests(self: Any, requests: dict[str, tuple[str, types.RequestType, dict]]) -> None:
    """Wraps TinkerEngine.process_single_requests."""
    if requests and self._sampler:
        self._sampler.drain()
    stock_single(self, requests)


def find_batchable_sample(self: Any, session: Any) -> Requests:
    """Wraps TinkerEngine.find_batchable_sample."""
    sampling = self._sampler = self._sampler or Sampling(self)
    return sampling.find(session)


def apply() -> None:
    if not hasattr(JaxBackendImpl, "seats"):  # without engine_seats
        return
    TinkerEngine.process_batch_requests = process_batch_requests
    TinkerEngine.process_single_requests = process_single_requests
    TinkerEngine.find_batchable_sample = find_batchable_sample
