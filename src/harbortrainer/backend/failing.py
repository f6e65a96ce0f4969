"""The first requests to a server: the SDK repeats each that fails with 5xx, or whose connection is closed, for five
minutes, and waits for one without an answer for longer, silently.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import httpx
import tinker

from harbortrainer.backend.health import PATH
from harbortrainer.backend.http import http_client
from harbortrainer.errors import BackendError, one_line
from harbortrainer.stopping import run_until

QUIET_SEC, ASKS, ASK_LIMIT_SEC = 4.0, 2, 5.0  # without an answer; then it is asked something that needs no work
BESIDE = ("/healthz", "/session_heartbeat", "_config", "/telemetry")  # what the SDK asks whatever else it waits for
FIRST = ("/client/config", "/get_server_capabilities", "/create_session", "/create_model")
REFUSALS = (400, 401, 403, 409, 429)  # by a server that knows the request
SDK_ANSWERS = "tinker._base_client"  # its logger
FAILS = "the server fails: look at its log or status page, and try again later"
CLOSED = "closes {} {} without an answer"
MOST, PATIENCE_SEC, POLL_SEC, NAME_LIMIT_SEC = 4, 3.0, 0.5, 3.0  # answers in a row, seconds from the first on


async def first_contact[T](url: str, work: Coroutine[Any, Any, T], about: Mapping[str, Any], *, known: bool) -> T:
    """Return the result of `work`, which is ended when the server fails again and again, or falls silent.

    `about`: what its healthz says of it, {} = not this project's. `known`: it is Tinker cloud. Raises BackendError.
    Where the server lacks a request that comes first, it says what the server is, unless that is known.
    """
    try:
        return await run_until(work, _failing(url, bool(about), known))
    except BackendError as error:
        cause = error.__cause__
        if known or about or not isinstance(cause, tinker.APIStatusError | tinker.APIResponseValidationError):
            raise
        path = cause.request.url.path
        if cause.status_code in REFUSALS or not path.endswith(FIRST):
            raise
        asked = f"{cause.status_code} to {cause.request.method} {path}"
        raise type(error)(f"{error} ({asked}); {await _no_api(url)}") from None


async def _failing(url: str, own: bool, cloud: bool) -> NoReturn:
    """Return an end for `stopping.run_until`: raises BackendError when one request fails again and again, or the server
    answers nothing but its healthz, which `own` does while it computes.
    """
    with _listening(url) as answers:
        while True:
            for failure, (count, since, request_id) in list(answers.failed.items()):
                if count >= MOST and (sec := time.monotonic() - since) >= PATIENCE_SEC:
                    last = f", the last with request id {request_id}" if request_id else ""
                    what = f"{failure}, {count} times in {sec:.0f} s{last}"
                    raise BackendError(f"{url}: {what}; {FAILS if own or cloud else await _no_api(url)}")
            if not own and time.monotonic() - answers.heard > QUIET_SEC and await _deaf(url):
                what = f"answers GET {PATH}, and no other request"
                raise BackendError(f"{url}: {what}; {FAILS if cloud else await _no_api(url)}")
            await asyncio.sleep(POLL_SEC)


@dataclass(slots=True)
class _Answers:
    """By failure: its number, the time of the first, the id of the last. `heard`: when any answer came last."""

    failed: dict[str, tuple[int, float, str]] = field(default_factory=dict)
    heard: float = field(default_factory=time.monotonic)

    def fail(self, failure: str, request_id: str = "") -> None:
        count, since, _ = self.failed.get(failure, (0, time.monotonic(), ""))
        self.failed[failure] = count + 1, since, request_id


@contextlib.contextmanager
def _listening(url: str) -> Iterator[_Answers]:
    """Read what the SDK logs of each answer, and keep it out of the log."""
    answers = _Answers()

    def watched(record: logging.LogRecord) -> bool:
        match record.args:
            case (str(method), httpx.URL() as asked, int(status), _, httpx.Headers() as headers):
                if str(asked).startswith(url):
                    answers.failed.pop(CLOSED.format(method, asked.path), None)
                    if not asked.path.endswith(BESIDE):
                        answers.heard = time.monotonic()
                    if status >= httpx.codes.INTERNAL_SERVER_ERROR:
                        failure = f"answers {status} to {method} {asked.path}"
                        answers.fail(failure, headers.get("x-request-id", ""))
        match record.exc_info:
            case (_, httpx.RemoteProtocolError() | httpx.ReadError() as error, _):
                asked = error.request.url
                if str(asked).startswith(url):
                    answers.fail(CLOSED.format(error.request.method, asked.path))
        return record.levelno >= sdk.getEffectiveLevel()

    sdk, logger = logging.getLogger("tinker"), logging.getLogger(SDK_ANSWERS)
    before = logger.level
    logger.addFilter(watched)
    logger.setLevel(logging.DEBUG)
    try:
        yield answers
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


async def _no_api(url: str) -> str:
    """Say what the server is, by its /openapi.json."""
    name = "a server without a name"
    with contextlib.suppress(httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError):
        async with http_client(NAME_LIMIT_SEC) as client:
            info = (await client.get(f"{url}/openapi.json")).json()["info"]
        name = one_line(f"{info['title']!r} {info.get('version', '')}", 80)
    return (
        f"it is {name}, and no Tinker API for the SDK tinker {tinker.__version__}: start one with "
        "scripts/start_skyrl_tx.sh, or look at its log"
    )
