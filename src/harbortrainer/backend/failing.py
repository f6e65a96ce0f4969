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

QUIET_SEC, ASKS, ASK_LIMIT_SEC = 4.0, 2, 5.0  # without an answer; then it is asked something that needs no work
BESIDE = ("/healthz", "/session_heartbeat", "_config", "/telemetry")  # what the SDK asks whatever else it waits for
FIRST = ("/client/config", "/get_server_capabilities", "/create_session", "/create_model")
REFUSALS = (400, 401, 403, 409, 429)  # by a server that knows the request
MOST, PATIENCE_SEC, POLL_SEC, NAME_LIMIT_SEC = 4, 3.0, 0.5, 3.0  # answers in a row, seconds from the first on


async def first_contact[T](url: str, work: Coroutine[Any, Any, T], *, known: bool) -> T:
    """Return the result of `work`, which is ended when the server fails again and again, or falls silent.

    Raises BackendError. Where the server lacks a request that comes first, it says what the server is, unless `known`.
    """
    try:
        return await run_until(work, _failing(url))
    except BackendError as error:
        cause = error.__cause__
        if known or not isinstance(cause, tinker.APIStatusError | tinker.APIResponseValidationError):
            raise
        path, name = cause.request.url.path, await _name(url)
        if cause.status_code in REFUSALS or not path.endswith(FIRST) or name is None:
            raise
        asked = f"{cause.status_code} to {cause.request.method} {path}"
        raise type(error)(f"{error} ({asked}); {_no_api(name)}") from None


async def _failing(url: str) -> NoReturn:
    """Return an end for `stopping.run_until`: raises BackendError when one request fails with 5xx again and again, or
    the server answers nothing but its healthz.
    """
    failed: dict[str, tuple[int, float]] = {}  # by request: answers of 5xx since the last other one, the first's time
    heard = time.monotonic()

    def watched(record: logging.LogRecord) -> bool:
        """Read what httpx logs of each answer, and keep it out of the log."""
        nonlocal heard
        match record.args:
            case (method, httpx.URL() as asked, _, int(status), _) if str(asked).startswith(url):
                count, since = failed.pop(request := f"{status} to {method} {asked.path}", (0, time.monotonic()))
                if not asked.path.endswith(BESIDE):
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
                    name = await _name(url) or "this project's server"
                    raise BackendError(f"{url}: answers {request}, {count} times; {_no_api(name)}")
            if time.monotonic() - heard > QUIET_SEC and await _deaf(url) and (name := await _name(url)):
                raise BackendError(f"{url}: answers GET {PATH}, and no other request; {_no_api(name)}")
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
