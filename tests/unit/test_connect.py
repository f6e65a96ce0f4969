"""Reaching a server: URL, key, health, model. The live server is tried in tests/integration."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tinker._client import AsyncTinker

from harbortrainer.backend import health
from harbortrainer.backend.connect import CLOUD_URL, Api, server_url, warn_about_model
from harbortrainer.backend.contract import CLOUD, SELF_HOSTED
from harbortrainer.backend.sessions import DUMMY_KEY, api_key
from harbortrainer.config import Config
from harbortrainer.errors import BackendError, ServerLost, UserError
from harbortrainer.policy.chat_template import BaseModel
from harbortrainer.training.outside import Outside


def config(**changes) -> Config:
    values: dict[str, Any] = {"model_name": "Qwen/Qwen3-4B", "tasks_dir": "d"}
    return Config(**(values | changes))


# -- URL, key, health


def test_self_hosted_without_url_names_the_field(monkeypatch):
    monkeypatch.delenv("SKYRL_TX_URL", raising=False)
    with pytest.raises(UserError, match=r"skyrl_tx_url.*SKYRL_TX_URL"):
        server_url(config(backend="skyrl-tx"))


def test_url_comes_from_the_field_then_the_environment(monkeypatch):
    monkeypatch.setenv("SKYRL_TX_URL", "http://env:1/")
    assert server_url(config(backend="skyrl-tx")) == "http://env:1"
    assert server_url(config(backend="skyrl-tx", skyrl_tx_url="http://field:2")) == "http://field:2"
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    assert server_url(config()) == CLOUD_URL
    monkeypatch.setenv("TINKER_BASE_URL", "https://other")
    assert server_url(config()) == "https://other"
    assert server_url(config(tinker_base_url="https://x")) == "https://x"


def test_url_without_scheme_is_refused():
    with pytest.raises(UserError, match=r"skyrl_tx_url=localhost:8000.*http://"):
        server_url(config(backend="skyrl-tx", skyrl_tx_url="localhost:8000"))
    with pytest.raises(UserError, match=r"tinker_base_url=x\.y: .*https://"):
        server_url(config(tinker_base_url="x.y"))
    with pytest.raises(UserError, match="tinker_base_url=https://x:70000: Port out of range"):
        server_url(config(tinker_base_url="https://x:70000"))


def test_cloud_url_is_the_sdks_own(monkeypatch):
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    assert str(AsyncTinker(api_key="tml-x").base_url).rstrip("/") == CLOUD_URL


def test_cloud_needs_a_key_and_the_self_hosted_server_none(monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    assert api_key(SELF_HOSTED).startswith("tml-")
    with pytest.raises(UserError, match=r"TINKER_API_KEY.*\.env"):
        api_key(CLOUD)
    monkeypatch.setenv("TINKER_API_KEY", "wrong")
    with pytest.raises(UserError, match=r"starts with tml-"):
        api_key(CLOUD)


@contextlib.asynccontextmanager
async def http_server(answers: dict[str, tuple[int, str]], keys: set[str]) -> AsyncIterator[str]:
    """Answers by path, 404 to the rest; notes the keys that it was sent in `keys`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        keys.update(
            line.split(": ")[1] for line in request.decode().splitlines() if line.lower().startswith("x-api-key")
        )
        status, body = answers.get(request.split()[1].decode(), (404, '{"detail": "Not Found"}'))
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


HEALTHZ = "/api/v1/healthz"
OK = (200, '{"status": "ok"}')


@pytest.mark.parametrize("healthz", [(404, ""), (200, "<html>hello</html>"), (500, '{"status": "ill"}')])
async def test_another_service_at_the_url_is_no_tinker_api(healthz):
    async with http_server({HEALTHZ: healthz}, set()) as url:
        with pytest.raises(UserError, match=rf"no Tinker API there .*{healthz[0]}.*start_skyrl_tx"):
            await Outside().connect(config(backend="skyrl-tx", skyrl_tx_url=url))


async def test_a_key_that_the_cloud_refuses(monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-wrong")
    answers = {HEALTHZ: OK, "/api/v1/client/config": (401, '{"detail": "Unauthorized"}')}
    async with http_server(answers, set()) as url:
        with pytest.raises(BackendError, match=r"the key was refused; check TINKER_API_KEY"):
            await Outside().connect(config(tinker_base_url=url))


@pytest.mark.parametrize("key", ["", "tml-of-another-server"])
async def test_a_key_that_another_make_of_server_refuses(key, monkeypatch):
    monkeypatch.setenv("SKYRL_TX_API_KEY", key)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    async with http_server({HEALTHZ: OK, "/api/v1/client/config": (401, '{"detail": "Unauthorized"}')}, set()) as url:
        with pytest.raises(BackendError, match=r"SKYRL_TX_API_KEY: the server refuses this key"):
            await Outside().connect(config(backend="skyrl-tx", skyrl_tx_url=url))


@pytest.mark.parametrize(
    ("backend", "field", "own", "sent"),
    [
        ("skyrl-tx", "skyrl_tx_url", "tml-own-server", "tml-own-server"),
        ("skyrl-tx", "skyrl_tx_url", "", DUMMY_KEY),
        ("tinker", "tinker_base_url", "tml-own-server", "tml-cloud"),
    ],
)
async def test_the_key_of_a_server_goes_to_that_server_only(backend, field, own, sent, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-cloud")
    monkeypatch.setenv("SKYRL_TX_API_KEY", own)
    answers = {
        HEALTHZ: OK,
        "/api/v1/client/config": (200, "{}"),
        "/api/v1/get_server_capabilities": (200, '{"supported_models": [{"model_name": "other"}]}'),
        "/api/v1/unload_model": (200, "{}"),
    }
    keys: set[str] = set()
    async with http_server(answers, keys) as url:
        with pytest.raises(UserError, match="serves other"):
            await Outside().connect(config(backend=backend, **{field: url}))
        if own == sent:
            await Outside().api.unload(url, ["m"])
    assert keys == {sent}


class Reached(Exception):
    """What comes after the checks of the context."""


@pytest.mark.parametrize(
    ("made_for", "limit", "error", "words"),
    [
        (
            4096,
            8192,
            UserError,
            r"^context_limit=8192: Qwen/Qwen3-4B was made for 4096 tokens; set context_limit=4096$",
        ),
        (131_072, 128_000, Reached, "^$"),
        (131_072, 40_960, Reached, "^$"),
    ],
)
async def test_a_context_beyond_the_models_positions_is_refused_and_scaling_without_need_is_named(
    made_for: int, limit: int, error: type[Exception], words: str, caplog: pytest.LogCaptureFixture
):
    def reached(_: str) -> BaseModel:
        raise Reached

    class Here(Api):
        base_model = staticmethod(reached)

    about = {"made_for": made_for, "scaled_beyond": 40_960}
    served = {"supported_models": [{"model_name": "Qwen/Qwen3-4B", "max_context_length": 131_072}]}
    answers = {
        HEALTHZ: (200, json.dumps({"status": "ok", "server": about})),
        "/api/v1/client/config": (200, "{}"),
        "/api/v1/get_server_capabilities": (200, json.dumps(served)),
    }
    async with http_server(answers, set()) as url:
        with pytest.raises(error, match=words):
            await Outside(api=Here()).connect(config(backend="skyrl-tx", skyrl_tx_url=url, context_limit=limit))
    assert ("SKYRL_TX_CONTEXT_LIMIT=40960" in caplog.text) == (limit == 40_960)


@pytest.mark.parametrize(("key", "reason"), [("own", "starts with tml-"), ("tml-cloud", "is TINKER_API_KEY")])
def test_a_wrong_key_for_a_self_hosted_server_is_named(monkeypatch, key, reason):
    monkeypatch.setenv("TINKER_API_KEY", "tml-cloud")
    monkeypatch.setenv("SKYRL_TX_API_KEY", key)
    with pytest.raises(UserError, match=f"SKYRL_TX_API_KEY: {reason}"):
        api_key(SELF_HOSTED)


async def test_a_call_ends_when_the_server_is_gone():
    never = asyncio.Event()
    async with http_server({HEALTHZ: OK}, set()) as url:
        with pytest.raises(BackendError, match="no answer within"):  # it lives: only the limit ends the call
            await health.watched(url, "optim_step", never.wait(), 0.3, 600)
        assert await health.watched(url, "optim_step", asyncio.sleep(0.1, "done"), 600, 600) == "done"
    with pytest.raises(BackendError, match=rf"optim_step: {url} has not answered for 0.1 s;.*resume="):
        await health.watched(url, "optim_step", never.wait(), 600, 0.1)


async def test_a_server_that_only_fails_is_gone_too():
    async with http_server({HEALTHZ: (502, "")}, set()) as url:
        with pytest.raises(ServerLost, match=r"optim_step: .* has not answered for 0\.1 s"):
            await health.watched(url, "optim_step", asyncio.Event().wait(), 600, 0.1)
        with pytest.raises(BackendError, match=r"it answers 502.*outage_limit_sec"):
            await health.until_answering(url, 0.0)


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        ("http://127.0.0.1:9", "through the proxy http://127.0.0.1:9: conn"),
        ("socks5://127.0.0.1:9", "SOCKS"),
    ],
)
async def test_a_proxy_that_is_in_the_way_is_named(monkeypatch, proxy, said):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(UserError, match=f"^skyrl_tx_url=http://10.1.2.3:8000.*{said}"):
        await health.check_health("http://10.1.2.3:8000", config(backend="skyrl-tx"))


async def test_a_cloud_that_cannot_be_reached_points_to_the_own_server(monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    with pytest.raises(UserError, match=r"tinker_base_url=http://127\.0\.0\.1:9: connection refused.*skyrl-tx"):
        await Outside().connect(config(tinker_base_url="http://127.0.0.1:9"))


# -- model


@pytest.mark.parametrize(
    ("name", "architectures", "warned"),
    [
        ("mistralai/Mistral-7B", (), True),
        ("my/llama-like", ("MistralForCausalLM",), True),
        ("models/mine", ("Qwen3ForCausalLM",), False),
        ("Qwen/Qwen3-4B", (), False),
    ],
)
def test_unknown_family_only_warns(caplog, name, architectures, warned):
    warn_about_model(config(model_name=name), SELF_HOSTED, BaseModel(architectures))
    assert (name in caplog.text and "backend=tinker" in caplog.text) == warned
