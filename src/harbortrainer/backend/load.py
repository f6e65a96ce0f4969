"""What a server of this project reports about its work: programs that it compiles, waves, how busy its GPUs are."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import httpx

from harbortrainer.backend.contract import HEALTH_LIMIT_SEC
from harbortrainer.backend.http import http_client
from harbortrainer.policy.silence import Silences

Load = Mapping[str, Any]
POLL_SEC = 2.0
SAY_AFTER_SEC, SAY_AGAIN_SEC = 3.0, 15.0


async def look(url: str) -> Load | None:
    """`load` of healthz: counters from the server's start. {} for a server that reports none, None = it is down."""
    try:
        async with http_client(HEALTH_LIMIT_SEC) as http:
            answer = await http.get(f"{url}/api/v1/healthz")
        body = None if answer.is_server_error else answer.json()
    except httpx.HTTPError:
        return None
    except ValueError:
        return {}
    if body is None:
        return None
    load = body.get("load") if isinstance(body, dict) else None
    return load if isinstance(load, dict) else {}


async def look_on(url: str, silences: Silences) -> NoReturn:
    """Note when the server at `url` cannot answer, for ever."""
    while True:
        silences.looked(await look(url))
        await asyncio.sleep(POLL_SEC)


async def say_what_compiles(read: Callable[[], Awaitable[Load | None]], say: Callable[[str], None]) -> NoReturn:
    """Get an end for `run_until` that never ends: a line while the server compiles, once it has for SAY_AFTER_SEC."""
    due = SAY_AFTER_SEC  # seconds of a compilation after which the next line is due
    while True:
        load = await read() or {}
        seconds = float(load.get("compiling_seconds", 0.0))
        if seconds < due - SAY_AGAIN_SEC or not seconds:
            due = SAY_AFTER_SEC  # it is another one
        if seconds >= due:
            say(f"the server compiles {load.get('compiling')}: {seconds:.0f} s so far; calls of this size wait once")
            due = seconds + SAY_AGAIN_SEC
        await asyncio.sleep(POLL_SEC)
