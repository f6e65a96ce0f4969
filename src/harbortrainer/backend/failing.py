"""The first requests to a server: the SDK repeats each that fails with 5xx for five minutes, and waits for one without
an answer for longer, silently.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, NoReturn

import httpx
import tinker

from harbortrainer.backend.health import PATH, about_server
from harbortrainer.backend.http import http_client
from harbortrainer.errors import BackendError, one_line
from harbortrainer.stopping import run_until

QUIET_SEC, ASKS, ASK_LIMIT_SEC = 5.0, 2, 4.0  # without an answer; then it is asked something that needs no work
MOST, PATIENCE_SEC, POLL_SEC, NAME_LIMIT_SEC = 4, 3.0, 0.5, 3.0  # answers in a row, seconds from the first on


async def first_contact[T](url: str, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, which is ended when the server fails again and again, or falls silent.

    Raises BackendError; where the server is not this project's, it says what it is.
    """
    try:
        return await run_until(work, _failing(url))
    except BackendError as error:
        cause = error.__cause__
        keyless = isinstance(cause, tinker.AuthenticationError | tinker.PermissionDeniedError)
        if keyless or not isinstance(cause, tinker.APIStatusError | tinker.APIResponseValidationError):
            raise
        if (name := await _name(url)) is None:
            raise
        asked = f"{cause.status_code} to {cause.request.method} {cause.request.url.path}"
        raise BackendError(f"{error} ({asked}); {_no_api(name)}") from None


async def _failing(url: str) -> NoReturn:
    """Return an end for `stopping.run_until`: raises BackendError when one request fails with 5xx again and again."""
    failed: dict[str, tuple[int, float]] = {}  # by request: answers of 5xx since the last other one, the first's time
    heard = time.monotonic()

    def watched(record: logging.LogRecord) -> bool:
        """Read what httpx logs of each answer, and keep it out of the log."""
        nonlocal heard
        match record.args:
            case (method, httpx.URL() as asked, _, int(status), _) if str(asked).startswith(url):
                count, since = failed.pop(request := f"{status} to {method} {asked.path}", (0, time.monotonic()))
                heard = time.monotonic()
                if status >= httpx.codes.INTERNAL_SERVER_ERROR and not asked.path.endswith("/healthz"):
                    failed[request] = count + 1, since
        return record.levelno > logging.INFO

    logger, before = logging.getLogger("httpx"), logging.getLogger("httpx").level
    logger.addFilter(watched)
    logger.setLevel(logging.INFO)
    try:
        while True:
            for request, (count, since) in list(failed.items()):
                if count >= MOST and time.monotonic() - since >= PATIENCE_SEC:
                    said = _no_api(await _name(url) or "this project's server")
                    raise BackendError(f"{url}: answers {request}, {count} times; {said}")
            if time.monotonic() - heard > QUIET_SEC and await _deaf(url):
                said = _no_api(await _name(url) or "this project's server")
                raise BackendError(f"{url}: answers GET {PATH}, and no other request; {said}")
            await asyncio.sleep(POLL_SEC)
    finally:
        logger.removeFilter(watched)
        logger.setLevel(before)


async def _deaf(url: str) -> bool:
    """Whether it does not even refuse a request that lacks everything."""
    async with http_client(ASK_LIMIT_SEC) as client:
        for _ in range(ASKS):
            try:
                await client.post(f"{url}/api/v1/create_model", json={})
            except httpx.TimeoutException:
                continue
            except httpx.HTTPError:
                return False  # it is gone, which the SDK's own request says
            return False
    return True


def _no_api(name: str) -> str:
    return (
        f"it is {name}, and no Tinker API for the SDK tinker {tinker.__version__}: start one with "
        "scripts/start_skyrl_tx.sh, or look at its log"
    )


async def _name(url: str) -> str | None:
    """What a server says it is, in /openapi.json; None: this project's."""
    try:
        async with http_client(NAME_LIMIT_SEC) as client:
            if about_server((await client.get(url + PATH)).json()):
                return None
            info = (await client.get(f"{url}/openapi.json")).json()["info"]
        return one_line(f"{info['title']!r} {info.get('version', '')}", 80)
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError):
        return "a server without a name"
