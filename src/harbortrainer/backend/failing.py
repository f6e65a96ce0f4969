"""An end for the first requests to a server: the SDK repeats each that fails with 5xx for five minutes, silently."""

import asyncio
import logging
import time
from typing import NoReturn

import httpx
import tinker

from harbortrainer.backend.http import http_client
from harbortrainer.errors import BackendError, one_line

MOST, PATIENCE_SEC, POLL_SEC, NAME_LIMIT_SEC = 4, 3.0, 0.5, 3.0  # answers in a row, seconds from the first on


async def failing(url: str) -> NoReturn:
    """Return an end for `stopping.run_until`: raises BackendError when one request fails with 5xx again and again."""
    failed: dict[str, tuple[int, float]] = {}  # by request: answers of 5xx since the last other one, the first's time

    def watched(record: logging.LogRecord) -> bool:
        """Read what httpx logs of each answer, and keep it out of the log."""
        match record.args:
            case (method, httpx.URL() as asked, _, int(status), _) if str(asked).startswith(url):
                count, since = failed.pop(request := f"{status} to {method} {asked.path}", (0, time.monotonic()))
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
                    raise BackendError(
                        f"{url}: answers {request}, {count} times; it is {await _name(url)}, and no Tinker API for the "
                        f"SDK tinker {tinker.__version__}: start one with scripts/start_skyrl_tx.sh, or look at its log"
                    )
            await asyncio.sleep(POLL_SEC)
    finally:
        logger.removeFilter(watched)
        logger.setLevel(before)


async def _name(url: str) -> str:
    """What a server says it is, in /openapi.json."""
    try:
        async with http_client(NAME_LIMIT_SEC) as client:
            info = (await client.get(f"{url}/openapi.json")).json()["info"]
        return one_line(f"{info['title']!r} {info.get('version', '')}", 80)
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return "a server without a name"
