"""A way to the server on which answers get lost, requests fail, and the moment of a request is seen."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal

Fault = Literal["", "cut", "503"]  # "cut": the server takes the request and answers, and its answer is lost


@dataclass
class Rule:
    """What happens to `times` requests of `path`, the `nth` (0 = first) and later; `seen`: called as they pass."""

    path: str
    fault: Fault = ""
    nth: int = 0
    times: int = 1
    seen: Callable[[], None] | None = None


@dataclass
class Proxy:
    """Counts requests by the last part of their path."""

    port: int
    upstream: int
    rules: list[Rule] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request and its answer, then the connection is closed."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await reader.readuntil(b"\r\n\r\n")
            await self._answer(head, await _body(head, reader), writer)
        writer.close()

    async def _answer(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        rule = self._rule(head.split()[1].decode().split("?")[0].rsplit("/", 1)[-1])
        if rule.fault == "503":
            writer.write(b"HTTP/1.1 503 X\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}")
            await writer.drain()
            return
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            lines = [line for line in head.split(b"\r\n") if line and not line.lower().startswith(b"connection:")]
            up_writer.write(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
            await up_writer.drain()
            if rule.seen is not None:
                rule.seen()
            answer = await up_reader.read(-1)
        finally:
            up_writer.close()
        if rule.fault != "cut":
            writer.write(answer)
            await writer.drain()

    def _rule(self, path: str) -> Rule:
        count = self.counts[path] = self.counts.get(path, -1) + 1
        applies = (r for r in self.rules if r.path == path and r.nth <= count < r.nth + r.times)
        return next(applies, Rule(path))


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    """As it came, chunks included."""
    headers = {k.lower(): v for k, _, v in (line.partition(b": ") for line in head.split(b"\r\n"))}
    if b"content-length" in headers:
        return await reader.readexactly(int(headers[b"content-length"]))
    if b"transfer-encoding" in headers:
        return await reader.readuntil(b"0\r\n\r\n")
    return b""


@contextlib.asynccontextmanager
async def proxy_to(upstream: str, *rules: Rule) -> AsyncIterator[Proxy]:
    """A proxy to the server at this URL."""
    proxy = Proxy(0, int(upstream.rsplit(":", 1)[-1]), list(rules))
    server = await asyncio.start_server(proxy.carry, "127.0.0.1", 0, limit=2**26)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
