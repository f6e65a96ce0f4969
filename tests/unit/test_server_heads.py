"""The server ends connections whose request has no end, and answers the others meanwhile."""

import asyncio
import importlib.util
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from tests.conftest import ROOT

SPEC = importlib.util.spec_from_file_location("server_heads", ROOT / "server" / "heads.py")
assert SPEC is not None and SPEC.loader is not None
heads: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(heads)
WHOLE = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


async def app(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    config = uvicorn.Config(
        app, http=type("Quick", (heads.HeadsInTime,), {"head_sec": 0.2}), lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve([listener]))
        yield listener.getsockname()[1]
        server.should_exit = True
        await running


async def test_a_header_without_an_end_is_cut_off(port: int) -> None:
    reading, writing = await asyncio.open_connection("127.0.0.1", port)
    writing.write(b"GET / HTTP/1.1\r\nx: ")
    with pytest.raises(ConnectionError):
        for _ in range(64):
            writing.write(bytes(1 << 20).replace(b"\0", b"x"))
            await writing.drain()
        await reading.read()
        raise ConnectionError if reading.at_eof() else AssertionError


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nx: "])
async def test_a_connection_without_a_request_ends_and_one_with_requests_stays(port: int, sent: bytes) -> None:
    silent, writing = await asyncio.open_connection("127.0.0.1", port)
    writing.write(sent)
    reading, asking = await asyncio.open_connection("127.0.0.1", port)
    asking.write(WHOLE)
    assert (await reading.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        async with asyncio.timeout(600):
            await silent.readexactly(1)
    asking.write(WHOLE)
    assert (await reading.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"), "after the time that a head has"
    for connection in (writing, asking):
        connection.close()
