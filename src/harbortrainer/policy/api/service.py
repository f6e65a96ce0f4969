"""The run's model API: one ASGI app for all trials, each with a key and listening sockets of its own.

A request becomes `Exchange.say`; the answer is sampled whole and streams are replayed from it. Only this module needs
a web server: runs of agents in this process never import it.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import time
from asyncio import FIRST_COMPLETED
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from harbortrainer.errors import UserError
from harbortrainer.policy.api.exchange import AT_ONCE, Busy, Exchange, Over, Reply
from harbortrainer.policy.api.normal import Malformed
from harbortrainer.policy.api.wires import anthropic, chat, responses
from harbortrainer.policy.api.wires.wire import Ask, Head, Wire, error
from harbortrainer.policy.sampler import SamplingError

BODY_BYTES = 16 << 20
BODY_SEC = 10.0  # for a whole body to arrive
PING_SEC = 10.0  # between signs of life in a stream
KEEP_SEC = 3600  # an idle connection stays: agents run commands between two requests
CONNECTIONS = 64  # of one trial
IN_HAND = 2 * AT_ONCE  # requests of one trial whose bodies are read or answered
KEY = "key"  # in the state of a connection's scope
WIRES = {"/v1/chat/completions": chat.WIRE, "/v1/responses": responses.WIRE, "/v1/messages": anthropic.WIRE}
COUNT = "/v1/messages/count_tokens"
_SHAPES = (Malformed, KeyError, TypeError, AttributeError)  # what `Wire.read` raises


class _Refused(Exception):
    """A request that gets this status and text."""

    def __init__(self, status: int, code: str, text: str, retry_after: int | None = None) -> None:
        super().__init__(text)
        self.status, self.code, self.retry_after = status, code, retry_after


class _Connection(H11Protocol):
    """Closes at once where a trial has too many: each takes one of the run's file descriptors."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if self.app_state[KEY] and len(self.connections) > CONNECTIONS:
            transport.abort()


@dataclass
class _Trial:
    exchange: Exchange
    state: ServerState = field(default_factory=ServerState)
    servers: list[asyncio.Server] = field(default_factory=list)
    in_hand: int = 0


class Endpoint:
    """One a run. `refused`: requests that no trial's key came with, by status."""

    def __init__(self) -> None:
        self.refused: Counter[int] = Counter()
        self._trials: dict[str, _Trial] = {}  # by the digest of their key: no time tells how much of a key is right
        quiet: dict[str, Any] = {"log_config": None, "log_level": "error", "access_log": False}
        plain: dict[str, Any] = {"interface": "asgi3", "lifespan": "off", "ws": "none", "proxy_headers": False}
        self._config = Config(self._app, timeout_keep_alive=KEEP_SEC, **quiet, **plain)
        self._shared = ServerState()
        self._servers: list[asyncio.Server] = []

    async def __aenter__(self) -> "Endpoint":
        self._config.load()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for digest in list(self._trials):
            await self._close(digest)
        await _end(self._servers, self._shared)

    def open(self, exchange: Exchange, key: str = "") -> str:
        """A secret for this trial's agent, as its API key. `key`: that of an earlier phase, which was closed."""
        key = key or secrets.token_urlsafe(24)
        self._trials[_digest(key)] = _Trial(exchange)
        return key

    async def serve(self, listener: socket.socket, key: str = "") -> None:
        """Answer at a listening socket until `close(key)`: only that trial, and only with its key.

        Without a key the socket answers all trials until the run ends. The socket is closed with it. Raises KeyError
        when the key is not open.
        """
        trial = self._trials[_digest(key)] if key else None
        state, servers = (trial.state, trial.servers) if trial else (self._shared, self._servers)
        made = {KEY: key}
        loop = asyncio.get_running_loop()
        servers.append(await loop.create_server(lambda: _Connection(self._config, state, made), sock=listener))

    async def attach(self, connected: socket.socket, key: str) -> None:
        """Answer one connection as `serve` answers those of a socket; after `close(key)` it is closed at once."""
        if (trial := self._trials.get(_digest(key))) is None:
            connected.close()
            return
        state, made = trial.state, {KEY: key}
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: _Connection(self._config, state, made), sock=connected)

    async def close(self, key: str) -> None:
        """Refuse this key from now on, drop its requests in flight and close its sockets. A second time: nothing."""
        await self._close(_digest(key))

    async def _close(self, digest: str) -> None:
        if (trial := self._trials.pop(digest, None)) is not None:
            await trial.exchange.close()
            await _end(trial.servers, trial.state)

    # -- one request

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        trial: _Trial | None = None
        try:
            trial = self._trial(request)
            await self._answer(trial, request, send)
        except _Refused as refused:
            (trial.exchange.refused if trial else self._count)(refused.status)
            await _refuse(refused, scope, receive, send)
        except ClientDisconnect:
            return

    def _count(self, status: int) -> None:
        self.refused[status] += 1

    def _trial(self, request: Request) -> _Trial:
        """Whose key it is. Raises _Refused."""
        headers = request.headers
        key = headers.get("authorization", "").removeprefix("Bearer ").strip()
        key = key or headers.get("x-api-key", "") or headers.get("x-goog-api-key", "")
        own = request.scope["state"][KEY]
        trial = self._trials.get(_digest(key))
        if trial is None or (own and not hmac.compare_digest(own.encode(), key.encode())):
            raise _Refused(401, "invalid_api_key", "no trial has this key here")
        return trial

    async def _answer(self, trial: _Trial, request: Request, send: Send) -> None:
        method, path = request.method, request.url.path
        if (method, path) == ("GET", "/v1/models"):
            model = {"id": "policy", "object": "model", "created": 0, "owned_by": "run"}
            await _json({"object": "list", "data": [model]})(request.scope, request.receive, send)
        elif method == "POST" and path in {*WIRES, COUNT}:
            if trial.in_hand >= IN_HAND:
                raise _Refused(429, "rate_limit_exceeded", f"{IN_HAND} requests are in hand", retry_after=1)
            trial.in_hand += 1
            try:
                await _Reading(trial.exchange, request, send).answer(WIRES.get(path))
            finally:
                trial.in_hand -= 1
        elif (method, path) == ("GET", "/v1/responses"):  # a WebSocket: codex posts at once after this status alone
            raise _Refused(426, "upgrade_required", "no WebSocket here")
        else:
            raise _Refused(404, "unknown_url", f"no {method} {path} here")


class _Reading:
    """One request of a trial to a wire."""

    def __init__(self, exchange: Exchange, request: Request, send: Send) -> None:
        self._exchange, self._request, self._send = exchange, request, send

    async def answer(self, wire: Wire | None) -> None:
        """`wire`: None counts tokens. Raises _Refused, ClientDisconnect."""
        raw = await self._body()
        with self._exchange.conversation.clocked():
            body, asked = _read(wire or anthropic.WIRE, raw)
        self._exchange.ignored |= asked.ignored
        if wire is None:
            counted = asyncio.ensure_future(self._exchange.count(asked.messages, asked.tools))
            await self._whole({"input_tokens": await self._until(counted)})
            return
        again = self._request.headers.get("x-stainless-retry-count", "0") != "0"
        say = self._exchange.say(asked.messages, asked.tools, asked_max_tokens=asked.max_tokens, again=again)
        said = asyncio.ensure_future(say)
        name = body.get("model")
        head = Head(secrets.token_hex(12), int(time.time()), name if isinstance(name, str) else "policy")
        if asked.stream:
            await self._stream(wire, head, asked, said)
        else:
            reply = await self._until(said)
            with self._exchange.conversation.clocked():
                shown = wire.whole(head, reply)
            await self._whole(shown)

    async def _body(self) -> bytes:
        """Raises _Refused, ClientDisconnect."""
        told = self._request.headers.get("content-length", "0")
        parts, size = [], int(told[:15]) if told.isdecimal() else 0
        with _in_time():
            async with asyncio.timeout(BODY_SEC):
                if size <= BODY_BYTES:
                    size = 0
                    async for part in self._request.stream():
                        parts.append(part)
                        if (size := size + len(part)) > BODY_BYTES:
                            break
        if size > BODY_BYTES:
            raise _Refused(413, "request_too_large", f"a body has at most {BODY_BYTES} bytes")
        return b"".join(parts)

    async def _until(self, work: asyncio.Future[Any], ping: Callable[[], Awaitable[None]] | None = None) -> Any:
        """The result, unless the client leaves first: then `work` is cancelled. Raises _Refused, ClientDisconnect."""
        gone = asyncio.ensure_future(self._gone())
        try:
            while not work.done():
                await asyncio.wait({work, gone}, timeout=PING_SEC if ping else None, return_when=FIRST_COMPLETED)
                if gone.done() and not work.done():
                    raise ClientDisconnect
                if ping and not work.done():
                    await ping()
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
        return self._result(work)

    def _result(self, work: asyncio.Future[Any]) -> Any:
        try:
            return work.result()
        except (Over, SamplingError) as over:
            # the one refusal that no agent tries again, whatever the limit, and only in these very words
            limit = self._exchange.conversation.context_limit
            text = f"This model's maximum context length is {limit} tokens. However, {over}."
            raise _Refused(400, "context_length_exceeded", text) from None
        except Busy as busy:
            raise _Refused(429, "rate_limit_exceeded", str(busy), retry_after=1) from None
        except UserError as refused:
            raise _Refused(400, "invalid_request", str(refused)) from None

    async def _gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass

    async def _whole(self, value: Mapping[str, Any]) -> None:
        await _json(value)(self._request.scope, self._request.receive, self._send)

    async def _stream(self, wire: Wire, head: Head, asked: Ask, said: "asyncio.Future[Reply]") -> None:
        """One burst once the answer is there; signs of life until then, after which a refusal is an event."""
        started = False

        async def send(text: str, last: bool = False) -> None:
            nonlocal started
            if not started:
                headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
                started = True
            await self._send({"type": "http.response.body", "body": text.encode(), "more_body": not last})

        try:
            reply = await self._until(said, lambda: send(wire.ping))
        except _Refused as refused:
            if not started:
                raise
            self._exchange.refused(refused.status)
            await send(wire.failure(error(refused.status, refused.code, str(refused))), last=True)
            return
        with self._exchange.conversation.clocked():
            text = "".join(wire.stream(head, reply, asked))
        await send(text, last=True)


def _read(wire: Wire, raw: bytes) -> tuple[dict[str, Any], Ask]:
    """Raises _Refused."""
    try:
        body = json.loads(raw)
        return body, wire.read(body)
    except (ValueError, RecursionError, *_SHAPES) as wrong:
        reason = str(wrong) if isinstance(wrong, Malformed) else "the body has another form than this API's requests"
        raise _Refused(400, "invalid_request", reason) from None


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise _Refused(408, "request_timeout", f"the body did not arrive within {BODY_SEC:g} s") from None


async def _refuse(refused: _Refused, scope: Scope, receive: Receive, send: Send) -> None:
    # the clients obey x-should-retry before the status; what is left of a body is not read
    headers = {"x-should-retry": "true" if refused.status == 429 else "false"}
    if refused.retry_after is not None:
        headers["retry-after"] = str(refused.retry_after)
    if refused.status in (408, 413):
        headers["connection"] = "close"
    value = error(refused.status, refused.code, str(refused))
    await _json(value, refused.status, headers)(scope, receive, send)


def _json(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """In ASCII: what a client sent, and gets back, may hold lone surrogates."""
    return Response(json.dumps(value), status, headers, media_type="application/json")


async def _end(servers: list[asyncio.Server], state: ServerState) -> None:
    """Close listening sockets and connections, and wait for their requests."""
    for server in servers:
        server.close()
    for connection in list(state.connections):
        connection.transport.abort()
    if state.tasks:
        await asyncio.wait(state.tasks)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
