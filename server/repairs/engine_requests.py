"""One bad request fails alone, not with every request that the engine happened to batch with it, nor with the engine.

Upstream: skyrl/tinker/engine.py, TinkerEngine.process_batch_requests answers any exception of a batch to all of it:
all waiting samples of all users, or all waiting passes of one model. A database that is locked, or whose disk is full,
ends the engine, and so the server with the weights of all users, in TinkerEngine._complete_futures; so
does a result beyond sqlite's limit, also after each restart.
"""

# pyright: reportMissingImports=false
import time
from collections.abc import Callable
from typing import Any

from skyrl.tinker import types
from skyrl.tinker.engine import TinkerEngine
from skyrl.utils.log import logger
from sqlalchemy.exc import DataError, OperationalError

from repairs.handover import DAMAGED

Requests = dict[str, tuple[str, Any]]
Processor = Callable[[Requests], dict[str, Any]]
# What a request can provoke in skyrl and JAX (its runtime errors are RuntimeErrors, out of memory among them)
FAILURES = (ValueError, TypeError, LookupError, AssertionError, OSError, RuntimeError)
FAILURES += (*DAMAGED, ArithmeticError)  # a number beyond 32 bits
TOO_LARGE = types.ErrorResponse(error="the result is too large for the server's database", status="failed")
STORE_PAUSE_SEC = 1.0
stock_process = TinkerEngine.process_batch_requests
stock_complete = TinkerEngine._complete_futures


def isolating(process: Processor) -> Processor:
    """The same processor, but a batch that fails is done again request by request."""

    def alone(request_id: str, item: tuple[str, Any]) -> dict[str, Any]:
        try:
            return process({request_id: item})
        except FAILURES as error:
            logger.exception(f"Request {request_id} failed: {error}")
            text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            return {request_id: types.ErrorResponse(error=text, status="failed")}

    def process_isolated(requests: Requests) -> dict[str, Any]:
        if len(requests) > 1:
            try:
                return process(requests)
            except FAILURES as error:
                logger.warning(f"Batch of {len(requests)} failed ({error}); its requests are done one by one")
        return {key: result for request_id, item in requests.items() for key, result in alone(request_id, item).items()}

    return process_isolated


def process_batch_requests(
    self: Any, requests: Requests, processor: Processor, name: str, per_model: bool = False
) -> None:
    """Wraps TinkerEngine.process_batch_requests."""
    stock_process(self, requests, isolating(processor), name, per_model=per_model)


def complete_futures(self: Any, results: dict[str, Any]) -> None:
    """Wraps TinkerEngine._complete_futures: what is computed waits until it can be stored."""
    while results:
        try:
            stock_complete(self, results)
            return
        except OperationalError as error:
            logger.warning(f"The results of {len(results)} requests are not stored yet: {error.orig}")
            time.sleep(STORE_PAUSE_SEC)
        except DataError:
            for request_id, result in results.items():
                complete_futures(self, {request_id: result if len(results) > 1 else TOO_LARGE})
            return


def apply() -> None:
    TinkerEngine._complete_futures = complete_futures
    TinkerEngine.process_batch_requests = process_batch_requests
