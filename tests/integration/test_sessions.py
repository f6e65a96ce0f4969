"""Keys and sessions: no server but Tinker cloud gets Tinker's key, and no session outlives its use."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.backend import sessions
from harbortrainer.backend.sessions import DUMMY_KEY, Session, end_dead_sessions, end_session, new_rest, new_service
from harbortrainer.config import Config
from harbortrainer.doctor import servers
from harbortrainer.durable.files import cache_folder
from harbortrainer.errors import BackendError
from harbortrainer.probe import probe
from harbortrainer.probe.session import ProbeSession
from harbortrainer.training.outside import Outside
from scripts.test_skyrl_tx import Connection
from tests.conftest import ROOT

SECRET = "tml-secret"


@dataclass
class Server:
    """As much of a Tinker API as opens and ends sessions; `asked` has "METHOD path" of each request."""

    model: str
    url: str = ""
    asked: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    client_config: str = "{}"

    def body(self, path: str) -> str | None:
        answers = {
            "/api/v1/healthz": '{"status": "ok"}',
            "/api/v1/client/config": self.client_config,
            "/api/v1/client/dynamic_config": "{}",
            "/api/v1/get_server_capabilities": json.dumps({"supported_models": [{"model_name": self.model}]}),
            "/api/v1/create_session": '{"session_id": "s1", "type": "create_session"}',
            "/api/v1/session_heartbeat": '{"type": "session_heartbeat"}',
            "/api/v1/sessions/s1/finish": "null",
        }
        return answers.get(path)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
        await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = head.split(" ", 2)
        self.asked.append(f"{method} {path}")
        sent = [headers[name] for name in ("x-api-key", "authorization") if name in headers]
        self.keys |= {key.removeprefix("bearer ") for key in sent}
        body = self.body(path)
        status, text = (200, body) if body is not None else (404, '{"detail": "Not Found"}')
        answer = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        writer.write(f"{answer}Connection: close\r\n\r\n{text}".encode())
        await writer.drain()
        writer.close()


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model_dir: Path) -> AsyncIterator[Server]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TINKER_API_KEY", SECRET)
    one = Server(str(tiny_model_dir))
    listening = await asyncio.start_server(one.answer, "127.0.0.1", 0)
    async with listening:
        one.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield one


def config(server: Server) -> Config:
    return Config(backend="skyrl-tx", skyrl_tx_url=server.url, model_name=server.model, tasks_dir="d")


async def opened(server: Server) -> Session:
    service = await asyncio.to_thread(new_service, server.url, DUMMY_KEY)
    return Session(service, await asyncio.to_thread(new_rest, server.url, DUMMY_KEY), server.url, DUMMY_KEY)


# -- keys


async def use_sdk(server: Server) -> None:
    session = await opened(server)
    await end_session(session.service, done=True)


async def use_probe(server: Server) -> None:
    session = await opened(server)
    with contextlib.suppress(BackendError):  # it has no adapters
        await probe.probe(session, server.model)
    bench = ProbeSession(session, server.model)
    await bench._unload("m")
    await bench.close()
    await end_session(session.service, done=True)


async def use_doctor(server: Server) -> None:
    with contextlib.suppress(BackendError):
        await servers.probe(servers.ServerArgs(backend="skyrl-tx", skyrl_tx_url=server.url))


async def use_connection_test(server: Server) -> None:
    connection = Connection(server.url, None)
    assert await asyncio.to_thread(connection.capabilities) == f"serves {server.model}"


@pytest.mark.parametrize("use", [use_sdk, use_probe, use_doctor, use_connection_test])
async def test_tinkers_key_never_goes_to_a_self_hosted_server(server: Server, use: Any) -> None:
    await use(server)
    assert server.keys and SECRET not in server.keys


async def test_a_self_hosted_server_does_not_get_what_the_credential_command_prints(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", f"echo {SECRET}")
    server.client_config = '{"pjwt_auth_enabled": true, "credential_default_source": "credential_cmd"}'
    with contextlib.suppress(BackendError):  # it has no tokens to exchange the key for
        await sessions.open_rest(server.url, DUMMY_KEY)
    assert server.keys == {DUMMY_KEY} and os.environ["TINKER_CREDENTIAL_CMD"] == f"echo {SECRET}"


# -- sessions


async def test_a_session_ends_when_the_server_cannot_be_measured(server: Server) -> None:
    async def fails(*_: Any) -> Any:
        raise BackendError("no free slot")

    with pytest.raises(BackendError, match="no free slot"):
        await Outside(measure=fails).connect(config(server))
    assert "POST /api/v1/create_session" in server.asked and "POST /api/v1/sessions/s1/finish" in server.asked


async def test_the_doctor_ends_its_session(server: Server) -> None:
    await use_doctor(server)
    assert server.asked.count("POST /api/v1/create_session") == 1
    assert server.asked.count("POST /api/v1/sessions/s1/finish") == 1
    assert list(cache_folder("sessions").iterdir()) == []


KILLED = """
import os, signal, sys
from harbortrainer.backend.sessions import DUMMY_KEY, new_service
new_service(sys.argv[1], DUMMY_KEY)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_the_session_of_a_killed_process_is_ended_by_the_next(server: Server) -> None:
    """At its own server, once; that of a live process goes on."""
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, server.url, cwd=ROOT)
    assert await killed.wait() == -9
    assert "POST /api/v1/create_session" in server.asked and "POST /api/v1/sessions/s1/finish" not in server.asked
    assert await end_dead_sessions("http://127.0.0.1:9") == 0
    assert await end_dead_sessions(server.url) == 1
    assert server.asked.count("POST /api/v1/sessions/s1/finish") == 1
    mine = await opened(server)
    assert await end_dead_sessions(server.url) == 0
    await end_session(mine.service, done=True)


async def test_a_server_that_does_not_answer_is_asked_again_later(server: Server) -> None:
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, server.url, cwd=ROOT, stdout=subprocess.DEVNULL
    )
    await killed.wait()
    url, (note,) = server.url, cache_folder("sessions").iterdir()
    note.write_text(note.read_text().replace(url, "http://127.0.0.1:9"))
    assert await end_dead_sessions("http://127.0.0.1:9") == 0 and note.exists()


async def test_a_folder_that_cannot_be_written_stops_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    session = await opened(server)
    await end_session(session.service, done=True)
    assert await end_dead_sessions(server.url) == 0
