"""SDK and HTTP errors -> one plain line. Shapes as the pinned SDK raises them."""

import asyncio
import re
from collections.abc import Awaitable

import httpx
import tinker

from src.errors import BackendError

# What the SDK raises for an answer of the server: its own errors, and plain ValueErrors for failed futures.
SDK_ERRORS = (tinker.TinkerError, httpx.HTTPError, ValueError, ConnectionError)

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
        "the server was restarted and has forgotten the model {0}; continue with resume=RUN_DIR",
    ),
    (
        r"Engine is configured for '(.*?)'",
        "model_name: the server serves {0}; use it, or start the server with yours",
    ),
)


async def awaited[T](what: str, work: Awaitable[T], limit_sec: float) -> T:
    """Await an SDK call under a limit. Raises BackendError that says what was waited for and what to do."""
    try:
        return await asyncio.wait_for(work, limit_sec)
    except TimeoutError:
        raise BackendError(
            f"{what}: no answer within {limit_sec:.0f} s; look at the server's log, then resume"
        ) from None
    except SDK_ERRORS as error:
        raise BackendError(f"{what}: {plain(error)}") from error


def plain(error: BaseException) -> str:
    """The cause in one line, with a fix where one is known."""
    text = str(error)
    for pattern, hint in HINTS:
        if match := re.search(pattern, text):
            return hint.format(*match.groups())
    if isinstance(error, tinker.AuthenticationError | tinker.PermissionDeniedError):
        return "the key was refused; check TINKER_API_KEY"
    if isinstance(error, tinker.APIConnectionError | httpx.ConnectError | ConnectionError):
        return "the server does not answer; check GET /api/v1/healthz"
    detail = re.search(r"'detail': ['\"](.*?)['\"]\}", text)
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return detail.group(1) if detail else first[:300]
