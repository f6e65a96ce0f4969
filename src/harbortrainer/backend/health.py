"""Asks a Tinker API whether it answers: once before use, while a call runs, and during an outage."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Any, NoReturn
from urllib.request import getproxies, proxy_bypass

import httpx

from harbortrainer.backend.contract import HEALTH_LIMIT_SEC
from harbortrainer.backend.faults import awaited
from harbortrainer.backend.http import http_client
from harbortrainer.config import ServerSettings
from harbortrainer.errors import BackendError, ServerLost, UserError, one_line
from harbortrainer.stopping import run_until

PATH = "/api/v1/healthz"
FIRST_PAUSE_SEC, POLL_SEC = 0.5, 10.0


def proxy_of(url: str) -> str:
    """Return the proxy that the environment names for this address, "" = none."""
    at, proxies = httpx.URL(url), getproxies()
    return "" if proxy_bypass(at.host) else proxies.get(at.scheme) or proxies.get("all") or ""


async def check_health(url: str, config: ServerSettings) -> dict[str, Any]:
    """Return GET /api/v1/healthz. Returns what a server of this project reports about itself; {} = another server.

    Raises UserError when nothing answers, or something that is no Tinker API.
    """
    if config.backend == "skyrl-tx":
        where = f"skyrl_tx_url={url}"
        fix = f"start it with scripts/start_skyrl_tx.sh MODEL TP and check GET {PATH}"
    else:
        where, fix = f"tinker_base_url={url}", "check your connection, or train with backend=skyrl-tx"
    try:
        async with http_client(HEALTH_LIMIT_SEC) as client:
            answer = await client.get(url + PATH)
    except httpx.ConnectError as error:
        if proxy := proxy_of(url):
            where, fix = f"{where} through the proxy {proxy}", "add the host to NO_PROXY, or mend HTTP_PROXY"
        raise UserError(f"{where}: connection refused or host unknown ({error}); {fix}") from None
    except httpx.TimeoutException:
        raise UserError(f"{where}: no answer within {HEALTH_LIMIT_SEC:.0f} s; {fix}") from None
    except (httpx.HTTPError, httpx.InvalidURL, ImportError) as error:  # the last: a SOCKS proxy
        raise UserError(f"{where}: {error or type(error).__name__}; {fix}") from None
    try:
        body = answer.json()
    except ValueError:
        body = None
    body = body if isinstance(body, dict) else {}
    if config.backend == "skyrl-tx" and (answer.status_code != httpx.codes.OK or "status" not in body):
        said = one_line(answer.text, 60)
        raise UserError(f"{where}: no Tinker API there (healthz answered {answer.status_code} {said}); {fix}")
    return about_server(body)


def about_server(body: dict[str, Any]) -> dict[str, Any]:
    """Return what healthz says of the server, and as `memory` what fits into its memory; {} = another server."""
    about, memory = body.get("server"), body.get("memory")
    if not isinstance(about, dict):
        return {}
    return about | ({"memory": memory} if isinstance(memory, dict) else {})


def memory_line(memory: Mapping[str, Any], context: int) -> str:
    """Say for people how much of a context fits into the server's memory."""
    sampled = ""
    if "sampled" in memory:
        sampled = f", sampled up to {memory['sampled']} with {memory['at_once']} at once"
    return f"context {context}: trained up to {memory['trained']} tokens{sampled}"


async def watched[T](url: str, what: str, work: Awaitable[T], limit_sec: float, silence_sec: float) -> T:
    """`awaited`, ended when the server falls silent: the SDK retries without limit. Raises BackendError."""
    return await run_until(awaited(what, work, limit_sec), silent(url, what, silence_sec))


async def silent(url: str, what: str, silence_sec: float) -> NoReturn:
    """Return an end for `stopping.run_until`: raises ServerLost when the server has not answered for `silence_sec`."""
    answered, pause = time.monotonic(), min(POLL_SEC, silence_sec / 3)
    await asyncio.sleep(pause)  # most calls are over by then
    async with http_client(min(HEALTH_LIMIT_SEC, silence_sec)) as client:
        while True:
            if await _problem(client, url) is None:
                answered = time.monotonic()
            elif time.monotonic() - answered >= silence_sec:
                break
            await asyncio.sleep(pause)
    raise ServerLost(
        f"{what}: {url} has not answered for {silence_sec:g} s; look at the server's log, "
        "start it again and continue with resume=RUN_DIR"
    )


async def until_answering(url: str, limit_sec: float) -> None:
    """Wait, with growing pauses, until the server answers. Raises BackendError after `limit_sec`."""
    began, pause = time.monotonic(), FIRST_PAUSE_SEC
    async with http_client(HEALTH_LIMIT_SEC) as client:
        while True:
            if (problem := await _problem(client, url)) is None:
                return
            if time.monotonic() - began > limit_sec:
                raise BackendError(
                    f"{url} did not answer for {limit_sec:g} s ({problem}); start it again, "
                    "continue with resume=RUN_DIR, or let the run wait longer (outage_limit_sec)"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, POLL_SEC)


async def _problem(client: httpx.AsyncClient, url: str) -> str | None:
    """Why the server counts as down: no answer, or a 5xx of a proxy or of a server that stops; None = it is up."""
    try:
        answer = await client.get(url + PATH)
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    return f"it answers {answer.status_code}" if answer.is_server_error else None
