"""Is a Tinker API there, and is it still there."""

import asyncio
import time
from collections.abc import Awaitable, Coroutine
from typing import Any

import httpx

from src.backend.faults import HEALTH_LIMIT_SEC, awaited
from src.config import Config
from src.errors import BackendError, ServerLost, UserError

PATH = "/api/v1/healthz"
FIRST_PAUSE_SEC, POLL_SEC = 0.5, 10.0
POLLS_WITHOUT_ANSWER = 12  # then the server counts as gone


async def check_health(url: str, config: Config) -> None:
    """GET /api/v1/healthz. Raises UserError when nobody, or somebody else, answers."""
    if config.backend == "skyrl-tx":
        where = f"skyrl_tx_url={url}"
        fix = f"start it with scripts/start_skyrl_tx.sh MODEL TP and check GET {PATH}"
    else:
        where, fix = f"tinker_base_url={url}", "check your connection, or train with backend=skyrl-tx"
    try:
        async with httpx.AsyncClient(timeout=HEALTH_LIMIT_SEC) as client:
            answer = await client.get(url + PATH)
    except httpx.ConnectError as error:
        raise UserError(f"{where}: connection refused or host unknown ({error}); {fix}") from None
    except httpx.TimeoutException:
        raise UserError(f"{where}: no answer within {HEALTH_LIMIT_SEC:.0f} s; {fix}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UserError(f"{where}: {error or type(error).__name__}; {fix}") from None
    if config.backend == "skyrl-tx" and not _is_tinker(answer):
        raise UserError(f"{where}: no Tinker API there (healthz answered {answer.status_code}); {fix}")


async def watched[T](url: str, what: str, work: Awaitable[T], limit_sec: float) -> T:
    """`awaited`, but not for longer than the server is there: the SDK asks a dead one for ever. Raises BackendError."""
    return await while_answering(url, what, awaited(what, work, limit_sec))


async def while_answering[T](url: str, what: str, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` for as long as the server answers; else cancel it, await its end and raise ServerLost."""
    call = asyncio.create_task(work)
    outage = asyncio.create_task(_outage(url))
    try:
        await asyncio.wait({call, outage}, return_when=asyncio.FIRST_COMPLETED)
        if call.done():
            return call.result()
        raise ServerLost(
            f"{what}: {url} has not answered for {POLL_SEC * POLLS_WITHOUT_ANSWER:.0f} s; look at the server's log, "
            "start it again and continue with resume=RUN_DIR"
        )
    finally:
        call.cancel()
        outage.cancel()
        await asyncio.wait({call, outage})


async def until_answering(url: str, limit_sec: float) -> None:
    """Wait, asking ever more rarely, until the server answers. Raises BackendError after `limit_sec`."""
    began, pause = time.monotonic(), FIRST_PAUSE_SEC
    async with httpx.AsyncClient(timeout=HEALTH_LIMIT_SEC) as client:
        while True:
            try:
                (await client.get(url + PATH)).raise_for_status()
                return
            except httpx.HTTPError as error:
                if time.monotonic() - began > limit_sec:
                    raise BackendError(
                        f"{url} did not answer for {limit_sec:g} s ({error or type(error).__name__}); start it again, "
                        "continue with resume=RUN_DIR, or let the run wait longer (server_outage_limit_sec)"
                    ) from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, POLL_SEC)


async def _outage(url: str) -> None:
    """Returns when the server has not answered for a while."""
    missed = 0
    await asyncio.sleep(POLL_SEC)  # most calls are over by then
    async with httpx.AsyncClient(timeout=HEALTH_LIMIT_SEC) as client:
        while True:
            try:
                await client.get(url + PATH)
                missed = 0
            except httpx.HTTPError:
                missed += 1
            if missed >= POLLS_WITHOUT_ANSWER:
                return
            await asyncio.sleep(POLL_SEC)


def _is_tinker(answer: httpx.Response) -> bool:
    try:
        return answer.status_code == httpx.codes.OK and "status" in answer.json()
    except ValueError:
        return False
