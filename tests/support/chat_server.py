"""A local OpenAI-compatible server: answers, hangs, refuses, sends nonsense, and goes away for a while."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Reply = tuple[int, Any] | None  # status and JSON value or raw text; None = silence
HANG: Reply = None
DRIPS: Reply = (0, None)  # an answer that never ends: a space now and then
CUT: Reply = (-1, None)  # half an answer, and the connection is gone


def says(text: Any, **usage: int) -> Reply:
    """An answer with this text."""
    return 200, {
        "choices": [{"message": {"role": "assistant", "content": text}}],
        **({"usage": usage} if usage else {}),
    }


def calls(*given: tuple[str, Any], text: str | None = None) -> Reply:
    """An answer that calls tools: (name, arguments) each; arguments that are a text are sent as they are."""
    sent = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": value if isinstance(value, str) else json.dumps(value)},
        }
        for number, (name, value) in enumerate(given)
    ]
    return 200, {"choices": [{"message": {"role": "assistant", "content": text, "tool_calls": sent}}]}


@dataclass
class ChatServer:
    """`answer` gets the request's body, or a list of replies is given in order, the last one for ever after."""

    answer: Callable[[dict[str, Any]], Reply] | Sequence[Reply]
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    port: int = 0
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections from now on, and break those that are open."""
        assert self._server is not None
        self._server.close()
        closed = asyncio.create_task(self._server.wait_closed())
        while not closed.done():  # a connection may come just now
            for writer in [*self._open]:
                writer.transport.abort()
            await asyncio.wait({closed}, timeout=0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while True:
                line, headers = await self._head(reader)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                reply = self._reply(line, headers, body)
                if reply is None:
                    await reader.read()  # until the connection ends
                elif reply is DRIPS:
                    await _drip(writer)
                elif reply is CUT:
                    writer.write(_response(200, {"choices": [{"message": {"content": "half an answer"}}]})[:-20])
                    await writer.drain()
                    break
                else:
                    assert reply is not None
                    writer.write(_response(*reply))
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()
            self._open.discard(writer)

    @staticmethod
    async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return lines[0], {name.lower(): value.strip() for name, _, value in pairs}

    def _reply(self, line: str, headers: dict[str, str], body: bytes) -> Reply:
        if line.startswith("GET"):
            return 200, {"data": []}  # as a proxy says, whatever it has behind it
        assert line.startswith("POST /v1/chat/completions ")
        self.requests.append(json.loads(body))
        self.headers.append(headers)
        if callable(self.answer):
            return self.answer(self.requests[-1])
        return self.answer[min(len(self.requests), len(self.answer)) - 1]


async def _drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 X\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


def _response(status: int, value: Any) -> bytes:
    body = (value if isinstance(value, str) else json.dumps(value)).encode()
    more = "Retry-After: 0\r\n" if status == 429 else ""
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


@asynccontextmanager
async def chat_server(answer: Callable[[dict[str, Any]], Reply] | Sequence[Reply]) -> AsyncIterator[ChatServer]:
    server = ChatServer(answer)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
