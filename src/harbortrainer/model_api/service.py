"""The run's model API: one ASGI app for all trials, each with a key and listening sockets of its own.

A request becomes `Exchange.say`; the answer is sampled whole and streams are replayed from it. Only this module needs
a web server: runs of agents in this process never import it.
"""

import asyncio
import functools
import hmac
import json
import secrets
import socket
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from harbortrainer.errors import UserError
from harbortrainer.model_api.exchange import AT_ONCE
from harbortrainer.model_api.normal import Malformed
from harbortrainer.model_api.reply import Busy, Over, Reply, Unavailable
from harbortrainer.model_api.wire import Ask, Head, Wire, error
from harbortrainer.plugins import known, plugin
from harbortrainer.policy.conversation import Conversation
from harbortrainer.policy.sampler import SamplingError
from harbortrainer.policy.tools import Message, Tool

BODY_BYTES = 16 << 20
BODY_SEC = 10.0  # for a whole body to arrive
PING_SEC = 10.0  # between signs of life in a stream
KEEP_SEC = 3600  # an idle connection stays: agents run commands between two requests
CONNECTIONS = 64  # of one trial
IN_HAND = 2 * AT_ONCE  # requests of one trial whose bodies are read or answered
TRIAL = "trial"  # in the state of a connection's scope
_SHAPES = (Malformed, KeyError, TypeError, AttributeError)  # what `Wire.read` raises


@functools.cache
def wires() -> dict[str, Wire]:
    """Return the wires of this package and of installed ones, by the path of their requests."""
    found = [plugin("wires", "wires", name).value for name in known("wires")]
    return {path: wire for wire in reversed(found) for path in (wire.path, wire.counting) if path}


class _Refused(Exception):
    """A request that gets this status and text."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code

    @property
    def body(self) -> dict[str, Any]:
        return error(self.status, self.code, str(self))


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Limits of a key. `name`: of the model; `in_hand`: requests whose bodies are read or answered, at once."""

    name: str = "policy"
    in_hand: int = IN_HAND
    connections: int = CONNECTIONS


LIMITS = ApiLimits()  # of a trial


class Answers(Protocol):
    """What is behind a key: an Exchange, or many."""

    @property
    def conversation(self) -> Conversation:
        """Whose limits and clock count."""
        ...

    async def say(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, asked_max_tokens: int | None, again: bool
    ) -> Reply: ...

    async def count(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int: ...

    def refused(self, status: int) -> None: ...

    async def close(self) -> None: ...


class _Connection(H11Protocol):
    """Closes at once where a trial has too many: each takes one of the run's file descriptors."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > self.app_state[TRIAL].limits.connections:
            transport.abort()


@dataclass
class _Trial:
    exchange: Answers
    key: str
    limits: ApiLimits = LIMITS
    state: ServerState = field(default_factory=ServerState)
    servers: list[asyncio.Server] = field(default_factory=list)
    in_hand: int = 0


class ModelApi:
    """One a run."""

    def __init__(self) -> None:
        self._trials: dict[str, _Trial] = {}  # by their key
        quiet: dict[str, Any] = {"log_config": None, "log_level": "error", "access_log": False}
        plain: dict[str, Any] = {"interface": "asgi3", "lifespan": "off", "ws": "none", "proxy_headers": False}
        self._config = Config(_app, timeout_keep_alive=KEEP_SEC, **quiet, **plain)

    async def __aenter__(self) -> "ModelApi":
        self._config.load()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for key in list(self._trials):
            await self.close(key)

    def open(self, exchange: Answers, key: str = "", limits: ApiLimits = LIMITS) -> str:
        """Return a secret for this trial's agent, as its API key. `key`: that of an earlier phase, which was closed."""
        key = key or secrets.token_urlsafe(24)
        self._trials[key] = _Trial(exchange, key, limits)
        return key

    async def serve(self, listener: socket.socket, key: str) -> None:
        """Answer at a listening socket until `close(key)`, which closes it: only that trial, and only with its key.

        Raises KeyError when the key is not open.
        """
        trial, loop = self._trials[key], asyncio.get_running_loop()
        trial.servers.append(await loop.create_server(lambda: self._connection(trial), sock=listener))

    async def attach(self, connected: socket.socket, key: str) -> None:
        """Answer one connection as `serve` answers those of a socket; after `close(key)` it is closed at once."""
        if (trial := self._trials.get(key)) is None:
            connected.close()
            return
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self._connection(trial), sock=connected)

    def _connection(self, trial: _Trial) -> _Connection:
        return _Connection(self._config, trial.state, {TRIAL: trial})

    async def close(self, key: str) -> None:
        """Refuse this key from now on, drop its requests in flight and close its sockets. A second time: nothing."""
        if (trial := self._trials.pop(key, None)) is None:
            return
        await trial.exchange.close()
        for server in trial.servers:
            server.close()
        for connection in list(trial.state.connections):
            connection.transport.abort()
        if trial.state.tasks:
            await asyncio.wait(trial.state.tasks)


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    request, trial = Request(scope, receive), scope["state"][TRIAL]
    try:
        await _answer(trial, request, send)
    except _Refused as refused:
        trial.exchange.refused(refused.status)
        # the clients obey x-should-retry before the status; what is left of a body is not read
        headers = (
            {"x-should-retry": "true", "retry-after": "1"}
            if refused.status in (429, 503)
            else {"x-should-retry": "false"}
        )
        if refused.status in (408, 413):
            headers["connection"] = "close"
        await _respond(request, send, refused.body, refused.status, headers)
    except ClientDisconnect:
        return


async def _answer(trial: _Trial, request: Request, send: Send) -> None:
    """Raises _Refused, ClientDisconnect."""
    method, path, headers = request.method, request.url.path, request.headers
    key = headers.get("authorization", "").removeprefix("Bearer ").strip()
    key = key or headers.get("x-api-key", "") or headers.get("x-goog-api-key", "")
    if not hmac.compare_digest(trial.key.encode(), key.encode()):
        raise _Refused(401, "invalid_api_key", "no trial has this key here")
    if (method, path) == ("GET", "/v1/models"):
        model = {"id": trial.limits.name, "object": "model", "created": 0, "owned_by": "run"}
        await _respond(request, send, {"object": "list", "data": [model]})
    elif method == "POST" and (wire := wires().get(path)) is not None:
        if trial.in_hand >= (most := trial.limits.in_hand):
            raise _Refused(429, "rate_limit_exceeded", f"{most} requests are in hand")
        trial.in_hand += 1
        try:
            await _Reading(trial.exchange, request, send).answer(wire, counts=path == wire.counting)
        finally:
            trial.in_hand -= 1
    elif (method, path) == ("GET", "/v1/responses"):  # a WebSocket: codex posts at once after this status alone
        raise _Refused(426, "upgrade_required", "no WebSocket here")
    else:
        raise _Refused(404, "unknown_url", f"no {method} {path} here")


class _Reading:
    """One request of a trial to a wire."""

    def __init__(self, exchange: Answers, request: Request, send: Send) -> None:
        self._exchange, self._request, self._send = exchange, request, send

    async def answer(self, wire: Wire, *, counts: bool) -> None:
        """Answer the request. `counts`: with the number of its tokens alone. Raises _Refused, ClientDisconnect."""
        raw = await self._body()
        with self._exchange.conversation.clocked():
            body, asked = _read(wire, raw)
        if counts:
            counted = asyncio.ensure_future(self._exchange.count(asked.messages, asked.tools))
            await _respond(self._request, self._send, {"input_tokens": await self._until(counted)})
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
            await _respond(self._request, self._send, shown)

    async def _body(self) -> bytes:
        """Raises _Refused, ClientDisconnect."""
        told = self._request.headers.get("content-length", "0")
        parts, size = [], int(told[:15]) if told.isdecimal() else 0
        try:
            async with asyncio.timeout(BODY_SEC):
                if size <= BODY_BYTES:
                    size = 0
                    async for part in self._request.stream():
                        parts.append(part)
                        if (size := size + len(part)) > BODY_BYTES:
                            break
        except TimeoutError:
            raise _Refused(408, "request_timeout", f"the body did not arrive within {BODY_SEC:g} s") from None
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
            work.add_done_callback(_seen)
            work.cancel()
        try:
            return work.result()
        except (Over, SamplingError) as over:
            # the one refusal that no agent tries again, whatever the limit, and only in these very words
            limit = self._exchange.conversation.context_limit
            text = f"This model's maximum context length is {limit} tokens. However, {over}."
            raise _Refused(400, "context_length_exceeded", text) from None
        except Unavailable as away:
            raise _Refused(503, "unavailable", str(away)) from None
        except Busy as busy:
            raise _Refused(429, "rate_limit_exceeded", str(busy)) from None
        except UserError as refused:
            raise _Refused(400, "invalid_request", str(refused)) from None

    async def _gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass

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
            await send(wire.failure(refused.body), last=True)
            return
        with self._exchange.conversation.clocked():
            text = "".join(wire.stream(head, reply, asked))
        await send(text, last=True)


def _seen(work: asyncio.Future[Any]) -> None:
    """Mark an error as seen, which the client that left does not get."""
    if not work.cancelled():
        work.exception()


def _read(wire: Wire, raw: bytes) -> tuple[dict[str, Any], Ask]:
    """Raises _Refused."""
    try:
        body = json.loads(raw)
        return body, wire.read(body)
    except (ValueError, RecursionError, *_SHAPES) as wrong:
        reason = str(wrong) if isinstance(wrong, Malformed) else "the body has another form than this API's requests"
        raise _Refused(400, "invalid_request", reason) from None


async def _respond(
    request: Request, send: Send, value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """In ASCII: what a client sent, and gets back, may hold lone surrogates."""
    response = Response(json.dumps(value), status, headers, media_type="application/json")
    await response(request.scope, request.receive, send)
