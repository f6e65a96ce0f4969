"""Opens and ends sessions on a server; ends those that killed processes of this machine have left."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import httpx
import tinker

from harbortrainer.backend.contract import CALL_LIMIT_SEC, CLOSE_LIMIT_SEC, KEY_HEADER, ServerKind
from harbortrainer.backend.faults import awaited, sdk_errors
from harbortrainer.backend.http import http_client
from harbortrainer.durable.files import cache_folder, replace_text
from harbortrainer.durable.process import lives, this_process
from harbortrainer.errors import DiskFault, UserError
from harbortrainer.stopping import in_daemon_thread

DUMMY_KEY = "tml-self-hosted"  # the SDK requires this form; a self-hosted server without a key ignores it
SELF_HOSTED_KEY = "SKYRL_TX_API_KEY"  # environment variable: the key that a self-hosted server requires
CREDENTIAL_COMMAND = "TINKER_CREDENTIAL_CMD"
_notes: WeakKeyDictionary[tinker.ServiceClient, Path] = WeakKeyDictionary()  # open sessions and their files


@dataclass(frozen=True, slots=True)
class Session:
    """An open session. `key`: sent to the server; Tinker's own only to Tinker cloud."""

    service: tinker.ServiceClient
    rest: tinker.RestClient
    url: str
    key: str


def api_key(kind: ServerKind) -> str:
    """Return the key to send. Raises UserError when Tinker cloud's is missing, or one has the wrong form."""
    if not kind.needs_key:
        return self_hosted_key()
    key = os.environ.get("TINKER_API_KEY", "")
    if not key:
        raise UserError("TINKER_API_KEY: needed with backend=tinker; put it in .env, or train with backend=skyrl-tx")
    if not key.startswith("tml-"):
        raise UserError("TINKER_API_KEY: a Tinker key starts with tml-; check .env")
    return key


def self_hosted_key() -> str:
    """Get key for self-hosted servers. Raises UserError unless it has a key's form and differs from Tinker cloud's."""
    key = os.environ.get(SELF_HOSTED_KEY, "")
    if key and not key.startswith("tml-"):
        raise UserError(f"{SELF_HOSTED_KEY}: starts with tml-, as the SDK requires; check .env and the server's key")
    if key and key == os.environ.get("TINKER_API_KEY"):
        raise UserError(f"{SELF_HOSTED_KEY}: is TINKER_API_KEY, which only Tinker cloud may get; use a key of its own")
    return key or DUMMY_KEY


def is_self_hosted(key: str) -> bool:
    """Return whether `api_key` gave this key for a self-hosted server."""
    return key in (DUMMY_KEY, os.environ.get(SELF_HOSTED_KEY))


async def open_rest(url: str, key: str) -> tinker.RestClient:
    """Return a client without a session. Raises BackendError."""
    return await awaited(f"connecting to {url}", in_daemon_thread(new_rest, url, key), CALL_LIMIT_SEC)


async def open_session(rest: tinker.RestClient, url: str, key: str, say: Callable[[str], None]) -> Session:
    """Open a session, after ending those of killed processes of this machine. Raises BackendError."""
    if is_self_hosted(key) and (n_ended := await end_dead_sessions(url, key)):
        say(f"ended {n_ended} sessions at {url} whose processes were killed: their adapter slots are free")
    service = await awaited(f"opening a session at {url}", in_daemon_thread(new_service, url, key), CALL_LIMIT_SEC)
    return Session(service, rest, url, key)


@contextlib.asynccontextmanager
async def opened(opening: Awaitable[Session]) -> AsyncIterator[Session]:
    """Yield a session, which ends with the block and frees its adapters."""
    session, done = await opening, False
    try:
        yield session
        done = True
    finally:
        await end_session(session.service, done=done)


async def end_session(service: tinker.ServiceClient, *, done: bool) -> None:
    """End the session, which frees its adapters; waits at most CLOSE_LIMIT_SEC, a third where the work failed."""
    limit_sec = CLOSE_LIMIT_SEC if done else CLOSE_LIMIT_SEC / 3  # the server may be why
    try:
        await asyncio.wait_for(service.close("success" if done else "interrupted"), limit_sec)
    except (TimeoutError, *sdk_errors()):
        return  # the server is down or lacks this request; it ends a silent session by itself
    if (note := _notes.pop(service, None)) is not None:
        _delete(note)


async def end_dead_sessions(url: str, key: str = DUMMY_KEY) -> int:
    """End the sessions at `url` of processes of this machine that were killed. Returns how many."""
    n_ended = 0
    async with http_client(CLOSE_LIMIT_SEC, {KEY_HEADER: key}) as client:
        for file, session in _noted():
            if session.get("url") != url or lives(session) is not False:
                continue
            with contextlib.suppress(httpx.HTTPError):
                body = {"reason": {"type": "interrupted"}, "detail": "its process was killed"}
                answer = await client.post(f"{url}/api/v1/sessions/{session.get('session_id')}/finish", json=body)
                if answer.is_success or answer.status_code == HTTPStatus.NOT_FOUND:
                    _delete(file)
                    n_ended += answer.is_success
    return n_ended


# The SDK blocks until its first answers: call these two outside the event loop's thread.
def new_rest(url: str, key: str) -> tinker.RestClient:
    with _this_key_only(key):
        return tinker.RestClient(base_url=url, api_key=key)


def new_service(url: str, key: str) -> tinker.ServiceClient:
    with _this_key_only(key):
        service = tinker.ServiceClient(base_url=url, api_key=key)
        session_id = service.holder.get_session_id()  # opens the session
    _notes[service] = _note(url, session_id)
    return service


@contextlib.contextmanager
def _this_key_only(key: str) -> Iterator[None]:
    """Hide TINKER_CREDENTIAL_CMD, whose output a server may request, from a self-hosted server."""
    command = os.environ.pop(CREDENTIAL_COMMAND, None) if is_self_hosted(key) else None
    if is_self_hosted(key):
        os.environ.setdefault("TINKER_TELEMETRY", "0")  # a self-hosted server does not use it
    try:
        yield
    finally:
        if command is not None:
            os.environ[CREDENTIAL_COMMAND] = command


def _note(url: str, session_id: str) -> Path:
    """Record an open session in a file, which stays when this process is killed. Failures to write are ignored."""
    file = cache_folder("sessions") / f"{hashlib.sha256(f'{url} {session_id}'.encode()).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, DiskFault):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps({"url": url, "session_id": session_id} | this_process()))
    return file


def _delete(note: Path) -> None:
    with contextlib.suppress(OSError):
        note.unlink()


def _noted() -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in cache_folder("sessions").glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            yield file, json.loads(file.read_text())
