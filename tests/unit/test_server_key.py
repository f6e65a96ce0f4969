"""The server's key: who needs one, and that every request without it is refused."""

import importlib.util
import json
from typing import Any

import pytest

from tests.conftest import ROOT

SPEC = importlib.util.spec_from_file_location("server_api_key", ROOT / "server" / "api_key.py")
assert SPEC is not None and SPEC.loader is not None
api_key: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(api_key)
KEY = "tml-" + "a" * 16


async def app(scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


async def ask(path: str, *keys: str, kind: str = "http", name: bytes = b"x-api-key") -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(name, key.encode()) for key in keys]
    await api_key.guarded(app, KEY)({"type": kind, "path": path, "headers": headers}, None, send)
    return sent


@pytest.mark.parametrize("keys", [(), ("tml-other",), (KEY + "a",), (KEY[:-1],), ("",), ("tml-other", KEY)])
async def test_a_request_without_the_key_is_refused_with_the_variables_name(keys: tuple[str, ...]) -> None:
    start, body = await ask("/api/v1/load_weights", *keys)
    assert start["status"] == 401
    assert "SKYRL_TX_API_KEY" in json.loads(body["body"])["detail"] and KEY not in body["body"].decode()


async def test_a_request_with_the_key_passes_and_health_needs_none() -> None:
    assert (await ask("/api/v1/asample", KEY))[0]["status"] == 200
    assert (await ask("/api/v1/asample", KEY, name=b"X-API-Key"))[0]["status"] == 200
    assert (await ask("/api/v1/healthz"))[0]["status"] == 200
    assert (await ask("/api/v1/healthz/../asample"))[0]["status"] == 401
    assert (await ask("/api/v1/external_weights/m/n/file"))[0]["status"] == 200, "its URL holds a signature"
    assert (await ask("/api/v1/external_weights"))[0]["status"] == 401
    assert await ask("/socket", kind="websocket") == [{"type": "websocket.close", "code": 1008}]


def test_a_server_beyond_this_machine_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKYRL_TX_API_KEY", raising=False)
    for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1"):
        assert api_key.take_key(host) == ""
    assert api_key.guarded(app, "") is app
    for host in ("0.0.0.0", "::", "192.168.1.2", "gpu-box"):
        with pytest.raises(SystemExit, match=f"--host {host}: .*SKYRL_TX_API_KEY"):
            api_key.take_key(host)
    for wrong in ("a" * 30, "tml-short"):
        monkeypatch.setenv("SKYRL_TX_API_KEY", wrong)
        with pytest.raises(SystemExit, match="SKYRL_TX_API_KEY: needs 20 characters"):
            api_key.take_key("127.0.0.1")


def test_the_engine_does_not_inherit_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYRL_TX_API_KEY", KEY)
    assert api_key.take_key("0.0.0.0") == KEY
    assert api_key.take_key("127.0.0.1") == ""  # it is gone from the environment
