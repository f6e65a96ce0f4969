"""Hostile and broken clients are refused at once, cost little, and no trial notices those of another."""

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from harbortrainer.model_api import service
from harbortrainer.model_api.exchange import AT_ONCE
from harbortrainer.model_api.service import BODY_BYTES, CONNECTIONS, IN_HAND, ModelApi
from tests.support.fakes import let_others_act
from tests.support.wire_parts import Served, exchange_of, listener, served

CHAT = "/v1/chat/completions"
MOST_CPU_SEC = 0.05  # of a refusal, with its client's
BODY = {"messages": [{"role": "user", "content": "q"}], "model": "m"}


@contextlib.contextmanager
def cheap(requests: int = 1) -> Iterator[None]:
    """CPU time of this process within the block, a request."""
    began = time.process_time()
    yield
    assert (time.process_time() - began) / requests < MOST_CPU_SEC


@contextlib.asynccontextmanager
async def client(trial: Served, key: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {key or trial.key}"} if key != "" else {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=trial.url, headers=headers, limits=limits, timeout=20) as made:
        yield made


async def answers(trial: Served) -> bool:
    async with client(trial) as good:
        return (await good.post(CHAT, json=BODY)).status_code == 200


async def raw(trial: Served, sent: bytes, *, wait: bool = True) -> bytes:
    """What comes back for bytes on a connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", trial.port)
    writer.write(sent)
    await writer.drain()
    got = await reader.read() if wait else b""
    writer.close()
    await writer.wait_closed()
    return got


def head(trial: Served, length: int, path: str = CHAT) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {trial.key}", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def test_only_a_trials_own_key_opens_its_socket() -> None:
    async with served(["one"]) as trial, served(["two"], endpoint=trial.endpoint) as other:
        for key in ("", "wrong", other.key, trial.key + "x"):
            async with client(trial, key) as bad:
                for path in (CHAT, "/v1/models", "/v1/messages/count_tokens", "/nowhere"):
                    with cheap():
                        answer = await bad.post(path, json=BODY)
                    assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
        assert trial.exchange.stats["wire_refused_401"] == 16
        assert not trial.client.requests and not other.client.requests
        assert await answers(trial) and await answers(other)
        for name in ("x-api-key", "x-goog-api-key"):
            async with httpx.AsyncClient(base_url=trial.url, headers={name: trial.key}) as good:
                assert (await good.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("told", [True, False])
async def test_a_body_of_20_MB_is_refused(told: bool) -> None:
    """With its length in the header it is not read; in chunks it is read up to the limit."""
    async with served(["x"]) as trial:
        if told:
            with cheap(2):
                got = await raw(trial, head(trial, 20 << 20) + b"x" * 1000)
                endless = head(trial, 0).replace(b"Content-Length: 0", b"Content-Length: " + b"9" * 5000)
                assert (await raw(trial, endless)).startswith(b"HTTP/1.1 4")
        else:
            chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
            sent = head(trial, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
            reader, writer = await asyncio.open_connection("127.0.0.1", trial.port)
            with contextlib.suppress(ConnectionError):
                for part in [sent, *[chunk] * (1 + (BODY_BYTES >> 20))]:
                    writer.write(part)
                    await writer.drain()
            got = await reader.read(1000)
            writer.close()
        assert got.startswith(b"HTTP/1.1 413") and b"request_too_large" in got
        assert trial.exchange.stats["wire_refused_413"] == 1 and await answers(trial)


async def test_a_hundred_requests_at_once_are_answered_or_refused() -> None:
    hold = asyncio.Event()
    async with served(["x"]) as trial:
        sample = trial.client.sample

        async def slow(**named: Any) -> Any:
            await hold.wait()
            return await sample(**named)

        trial.client.sample = slow  # type: ignore[method-assign]
        bodies = [BODY | {"messages": [{"role": "user", "content": str(n)}]} for n in range(100)]
        async with client(trial) as flood:
            began = time.process_time()
            posts = [asyncio.create_task(flood.post(CHAT, json=body)) for body in bodies]
            done, waiting = await asyncio.wait(posts, timeout=5, return_when=asyncio.FIRST_EXCEPTION)
            while len(waiting) > AT_ONCE:
                more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                done |= more
            assert (time.process_time() - began) / len(done) < MOST_CPU_SEC
            hold.set()
            rest = await asyncio.gather(*waiting)
        statuses = [post.result().status_code for post in done if post.exception() is None]
        assert set(statuses) == {429} and [one.status_code for one in rest] == [200] * AT_ONCE
        lost = [post.exception() for post in done if post.exception() is not None]
        assert all(isinstance(one, httpx.TransportError) for one in lost)  # beyond CONNECTIONS
        assert len(statuses) + AT_ONCE >= CONNECTIONS
        limited = next(post.result() for post in done if post.exception() is None)
        assert limited.headers["retry-after"] == "1" and limited.headers["x-should-retry"] == "true"
        assert len(trial.client.requests) == AT_ONCE and await answers(trial)


async def test_half_requests_do_not_keep_a_trial_from_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may be in hand: later ones are refused until these have had their time."""
    monkeypatch.setattr(service, "BODY_SEC", 0.2)
    async with served(["x"]) as trial:
        with cheap(IN_HAND):
            halves = [asyncio.create_task(raw(trial, head(trial, 500) + b"{")) for _ in range(IN_HAND)]
            while trial.endpoint._trials[trial.key].in_hand < IN_HAND:
                await let_others_act()
            async with client(trial) as good:
                assert (await good.post(CHAT, json=BODY)).status_code == 429
                got = await asyncio.gather(*halves)
        assert all(one.startswith(b"HTTP/1.1 408") for one in got)
        assert await raw(trial, head(trial, 500)[:40], wait=False) == b""
        assert (await raw(trial, b"\x00\xff nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")
        assert await answers(trial) and trial.exchange.over == ""


async def test_connections_beyond_the_limit_are_closed_and_the_others_stay() -> None:
    async with served(["x"]) as trial:
        idle = [await asyncio.open_connection("127.0.0.1", trial.port) for _ in range(CONNECTIONS)]
        reader, writer = await asyncio.open_connection("127.0.0.1", trial.port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        body = json.dumps(BODY).encode()
        first_reader, first = idle[0]
        first.write(head(trial, len(body)) + body)
        assert (await first_reader.readline()).startswith(b"HTTP/1.1 200")
        for one in [writer, *(one for _, one in idle)]:
            one.close()
        await asyncio.gather(*(one.wait_closed() for _, one in idle))


async def test_a_client_that_leaves_gets_its_answer_when_it_asks_again() -> None:
    hold = asyncio.Event()
    async with served(["one", "two"]) as trial:
        sample = trial.client.sample

        async def slow(**named: Any) -> Any:
            await hold.wait()
            return await sample(**named)

        trial.client.sample = slow  # type: ignore[method-assign]
        body = json.dumps(BODY).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", trial.port)
        writer.write(head(trial, len(body)) + body)
        while not trial.exchange._running:
            await let_others_act()
        writer.close()
        await writer.wait_closed()
        while not trial.exchange._unread:
            await let_others_act()
        hold.set()
        async with client(trial) as again:
            assert (await again.post(CHAT, json=BODY)).json()["choices"][0]["message"]["content"] == "one"
            said = await again.post(CHAT, json=BODY, headers={"x-stainless-retry-count": "1"})
            assert said.json()["choices"][0]["message"]["content"] == "one"
            assert (await again.post(CHAT, json=BODY)).json()["choices"][0]["message"]["content"] == "two"
        assert len(trial.client.requests) == 2 and trial.exchange.stats["wire_replayed"] == 2


async def test_a_client_that_leaves_as_its_trial_is_closed_leaves_no_error(caplog: pytest.LogCaptureFixture) -> None:
    body = json.dumps(BODY).encode()
    for turns in range(9):  # of the event loop between both
        async with served(lambda request: None) as trial:
            _, writer = await asyncio.open_connection("127.0.0.1", trial.port)
            writer.write(head(trial, len(body)) + body)
            while not trial.exchange._running:
                await let_others_act()
            writer.transport.abort()
            for _ in range(turns):
                await asyncio.sleep(0)
        await let_others_act()
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_closed_trial_is_refused_and_its_requests_in_flight_are_dropped() -> None:
    async with ModelApi() as endpoint:
        exchange, _ = exchange_of(lambda request: None)
        key, made = endpoint.open(exchange), listener()
        port = made.getsockname()[1]
        await endpoint.serve(made, key)
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as plain:
            asked = asyncio.create_task(plain.post(CHAT, json=BODY))
            while not exchange._running:
                await let_others_act()
            await endpoint.close(key)
            with pytest.raises(httpx.TransportError):
                await asked
            with pytest.raises(httpx.ConnectError):
                await plain.post(CHAT, json=BODY)
        await endpoint.close(key)
        with pytest.raises(KeyError):
            await endpoint.serve(made, key)
        assert not exchange.turns and exchange.over == "closed"


async def test_an_error_of_this_program_ends_the_trial_and_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    async with served(["x"]) as trial:

        def broken(*_: Any) -> Any:
            raise ZeroDivisionError("a mistake")

        trial.exchange._reply = broken  # type: ignore[method-assign]
        async with client(trial) as plain:
            assert (await plain.post(CHAT, json=BODY)).status_code == 500
            assert (await plain.post(CHAT, json=BODY)).status_code == 400
        assert isinstance(trial.exchange.fault, ZeroDivisionError) and trial.exchange.over == "fault"
        assert "a mistake" in caplog.text
