"""A request that cannot be answered is an error of the request, in one line, and not a 500.

Upstream: skyrl/tinker/api.py has no exception handlers. Whatever a request provokes is a 500, which the SDK retries for
minutes although the same request fails the same way; so is a refused NaN, which the list of validation errors repeats.
poll_futures asks for all results that clients wait for in one query: one id beyond sqlite's integers fails it for all.
"""

# pyright: reportMissingImports=false
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from skyrl.tinker import api
from skyrl.utils.log import logger

from repairs.api_routes import Endpoint, bad_request, wrap

OF_THE_REQUEST = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
MOST_ID = 2**63 - 1  # in a column of sqlite


def where(place: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in place if part != "body")


async def answer_invalid(_request: Any, error: Any) -> JSONResponse:
    """422: field and fault, without the request's contents, which may be megabytes, or NaN."""
    faults = [f"{where(fault['loc'])}: {fault['msg']}" for fault in error.errors()[:5]]
    return JSONResponse({"detail": "; ".join(faults)}, status_code=422)


async def answer_failed(request: Any, error: Exception) -> JSONResponse:
    logger.error(f"{request.url.path}: {type(error).__name__}: {error}", exc_info=error)
    return JSONResponse({"detail": f"{type(error).__name__}: {error}"}, status_code=400)


def known_ids(stock: Endpoint) -> Endpoint:
    async def retrieve_future(request: Any, **others: Any) -> Any:
        if abs(int(request.request_id)) > MOST_ID:
            raise bad_request("Future not found", 404)
        return await stock(request=request, **others)

    return retrieve_future


def apply() -> None:
    wrap("retrieve_future", known_ids)
    api.app.add_exception_handler(RequestValidationError, answer_invalid)
    for kind in OF_THE_REQUEST:
        api.app.add_exception_handler(kind, answer_failed)
