"""Turns errors of the SDK and of HTTP, as the pinned SDK raises them, into one line with a fix."""

import asyncio
import os
import re
from collections.abc import Awaitable

import httpx
import tinker

from harbortrainer.backend.contract import KEY_HEADER
from harbortrainer.errors import BackendError, ServerLost, one_line, raised_here

FORGOTTEN = re.compile(  # by a restart, or with the session
    r"Model \S+ not loaded|[Mm]odel \S+ is not loaded|(?:Model|Future) not found"
    r"|[Ss]ession (?:\S+ )?(?:not found|does not exist|expired|has finished)"
)
NO_WEIGHTS = re.compile(
    r"[Cc]heckpoint (?:\S+ )?not found|Checkpoint creation failed|Model not found|time to live is over"
)
NO_ROUTE = re.compile(r"'detail': '(?:Not Found|Method Not Allowed)'")

OWN_KEY = (
    "SKYRL_TX_API_KEY: the server refuses this key; set the variable, here or in .env, to the key that the server "
    "was started with (scripts/start_skyrl_tx.sh names its file)"
)
HINTS = (
    (
        r"LoRA rank \d+ must be between \d+ and (\d+)",
        "lora_rank: the server allows at most {0}; lower it or start the server with a higher MAX_LORA_RANK",
    ),
    (
        r"Maximum number of LoRA adapters",
        "every adapter slot of the server is taken; stop another run or start the server with more MAX_LORA_ADAPTERS",
    ),
    (
        r"Loss functions \[(.*?)\] are not supported",
        "loss_fn: the server does not have {0}; use importance_sampling, ppo or cispo",
    ),
    (
        r"Model (\S+) not loaded",
        "the server was restarted and has forgotten the model {0}",
    ),
    (
        r"Engine is configured for '(.*?)'",
        "model_name: the server serves {0}; use it, or start the server with yours",
    ),
    (
        r"(?:Checkpoint|Model) not found",
        "the server does not have these weights; was it started with FRESH=1 or another SKYRL_TX_STATE since?",
    ),
    (
        r"No space left on device|database or disk is full",
        "the server's disk is full: make room where its checkpoints lie, then resume",
    ),
    (
        r"(?:not finite|non-finite)",
        "loss or gradient is not a number: the weights have diverged; start a new run with a lower learning_rate",
    ),
    (
        r"grad_norm[`'\s]+Input should be a valid number",
        "the gradient is not a number: the weights have diverged; start a new run with a lower learning_rate",
    ),
    (
        r"'detail': '(?:Not Found|Method Not Allowed)'|Error code: 415|only supports as proto",
        "the server lacks a request of this SDK (tinker {version}): it is too old or too new; start one with "
        "scripts/start_skyrl_tx.sh",
    ),
)


def sdk_errors() -> tuple[type[Exception], ...]:
    """Return what the SDK raises: errors of its own, and ValueError for failed futures."""
    from tinker.lib.retryable_exception import RetryableException

    return tinker.TinkerError, RetryableException, httpx.HTTPError, ValueError, ConnectionError


async def awaited[T](what: str, work: Awaitable[T], limit_sec: float) -> T:
    """Await an SDK call. Raises BackendError naming the call and the fix; ServerLost if a restored state may help."""
    try:
        return await asyncio.wait_for(work, limit_sec)
    except TimeoutError:
        raise ServerLost(f"{what}: no answer within {limit_sec:.0f} s; look at the server's log, then resume") from None
    except sdk_errors() as error:
        if isinstance(error, ValueError) and raised_here(error):  # a bug in this package
            raise
        kind = ServerLost if _lost(error) else BackendError
        raise kind(f"{what}: {plain(error)}") from error


def _lost(error: BaseException) -> bool:
    """Whether the server is at fault, not the request."""
    gone = (tinker.APIConnectionError, tinker.InternalServerError, httpx.TransportError, ConnectionError)
    return isinstance(error, gone) or forgotten(error)


def forgotten(error: BaseException) -> bool:
    """Return whether the server no longer knows the model, session or request: it was restarted, or they expired."""
    return FORGOTTEN.search(str(error)) is not None


def no_weights(error: BaseException | None) -> bool:
    """Return whether the server answered that it does not have the requested weights."""
    text = str(error)
    if NO_WEIGHTS.search(text):
        return True
    return isinstance(error, tinker.NotFoundError) and not NO_ROUTE.search(text) and not forgotten(error)


def plain(error: BaseException) -> str:
    """Return the cause in one line, with the fix if it is known."""
    text = str(error)
    for pattern, hint in HINTS:
        if match := re.search(pattern, text):
            return hint.format(*match.groups(), version=tinker.__version__)
    if isinstance(error, tinker.AuthenticationError | tinker.PermissionDeniedError):
        clouds = error.request.headers.get(KEY_HEADER) == os.environ.get("TINKER_API_KEY")
        return "the key was refused; check TINKER_API_KEY" if clouds else OWN_KEY
    if isinstance(error, tinker.APIConnectionError | httpx.TransportError | ConnectionError | TimeoutError):
        return "the server does not answer; check GET /api/v1/healthz"
    return _detail(error) or one_line(text, 300) or type(error).__name__


def _detail(error: BaseException) -> str:
    """`detail` of the server's answer, or of the answer quoted in the message."""
    body = getattr(error, "body", None)
    detail = body.get("detail") if isinstance(body, dict) else None
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, d.get('loc', [])))}: {d.get('msg', d)}" for d in detail)[:300]
    quoted = re.search(r"'detail': ['\"](.*?)['\"]\}", str(error))
    return str(detail or (quoted.group(1) if quoted else ""))[:300]
