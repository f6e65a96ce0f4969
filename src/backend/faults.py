"""SDK and HTTP errors -> one plain line. Shapes as the pinned SDK raises them. And how long anything is waited for."""

import asyncio
import re
from collections.abc import Awaitable

import httpx
import tinker
from tinker.lib.retryable_exception import RetryableException

from src.errors import BackendError, ServerLost

# Seconds. The first call of a shape compiles for up to half a minute on JAX; a cloud queue may take long.
HEALTH_LIMIT_SEC = 10.0
CALL_LIMIT_SEC = 120.0  # a request that the server only has to take note of
CREATE_LIMIT_SEC = 900.0
UPDATE_LIMIT_SEC = 3600.0
SAVE_LIMIT_SEC = 900.0
CLOSE_LIMIT_SEC = 15.0  # at the end of a run, when nothing depends on it any more

# What the SDK raises for an answer of the server: its own errors, and plain ValueErrors for failed futures.
SDK_ERRORS = (tinker.TinkerError, RetryableException, httpx.HTTPError, ValueError, ConnectionError)

GONE = (tinker.APIConnectionError, tinker.InternalServerError, httpx.TransportError, ConnectionError)
FORGOTTEN = re.compile(r"Model \S+ not loaded|Session \S+ (?:not found|does not exist|expired)")  # by a restart

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
        r"(?:not finite|non-finite)",
        "loss or gradient is not a number: the weights have diverged; resume with a lower learning_rate",
    ),
    (
        r"grad_norm[`'\s]+Input should be a valid number",
        "the gradient is not a number: the weights have diverged; resume with a lower learning_rate",
    ),
    (
        r"'detail': '(?:Not Found|Method Not Allowed)'|Error code: 415",
        "the server lacks a request of this SDK (tinker {version}): it is too old or too new; start ours with "
        "scripts/start_skyrl_tx.sh",
    ),
)


async def awaited[T](what: str, work: Awaitable[T], limit_sec: float) -> T:
    """Await an SDK call under a limit. Raises BackendError that says what was waited for and what to do.

    ServerLost, when a restored state may mend it.
    """
    try:
        return await asyncio.wait_for(work, limit_sec)
    except TimeoutError:
        raise ServerLost(f"{what}: no answer within {limit_sec:.0f} s; look at the server's log, then resume") from None
    except SDK_ERRORS as error:
        kind = ServerLost if _lost(error) else BackendError
        raise kind(f"{what}: {plain(error)}") from error


def _lost(error: BaseException) -> bool:
    """Whether the server is at fault rather than what it was asked."""
    if isinstance(error, GONE):
        return True
    return FORGOTTEN.search(str(error)) is not None


def plain(error: BaseException) -> str:
    """The cause in one line, with a fix where one is known."""
    text = str(error)
    for pattern, hint in HINTS:
        if match := re.search(pattern, text):
            return hint.format(*match.groups(), version=tinker.__version__)
    if isinstance(error, tinker.AuthenticationError | tinker.PermissionDeniedError):
        return "the key was refused; check TINKER_API_KEY"
    if isinstance(error, tinker.APIConnectionError | httpx.TransportError | ConnectionError | TimeoutError):
        return "the server does not answer; check GET /api/v1/healthz"
    return _detail(error) or " ".join(text.split())[:300] or type(error).__name__


def _detail(error: BaseException) -> str:
    """What the server says is wrong: `detail` of its answer, or of the answer quoted in the message."""
    body = getattr(error, "body", None)
    detail = body.get("detail") if isinstance(body, dict) else None
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, d.get('loc', [])))}: {d.get('msg', d)}" for d in detail)[:300]
    quoted = re.search(r"'detail': ['\"](.*?)['\"]\}", str(error))
    return str(detail or (quoted.group(1) if quoted else ""))[:300]
