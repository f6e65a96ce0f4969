"""What computes a server's samples: in its fingerprint, the contract, effective.json, versions.json, and on resume."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import repairs
from harbortrainer.backend.contract import SELF_HOSTED, sampler_name
from harbortrainer.errors import BackendError
from harbortrainer.probe import probe
from harbortrainer.probe.report import ServerFacts, ServerReport
from harbortrainer.training.plan import sampler_change

CLIENT = httpx.AsyncClient
JAX = {"kind": "jax", "version": "0.12.0", "replicas": 1}
VLLM = {"kind": "vllm", "version": "0.32.0", "replicas": 2}


@pytest.mark.parametrize(
    ("about", "name"), [({"sampler": VLLM}, "vllm 0.32.0"), ({}, ""), ({"sampler": "x"}, ""), ({"sampler": {}}, "")]
)
def test_a_sampler_is_its_kind_and_version(about: dict[str, Any], name: str) -> None:
    assert sampler_name(about) == name


def answers(monkeypatch: pytest.MonkeyPatch, server: dict[str, Any], state: str = "ready") -> None:
    """healthz of the server at any URL."""
    body = {"status": "ok", "server": server, "sampler": {"replicas": [state]}}
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, json=body))
    monkeypatch.setattr(probe.httpx, "AsyncClient", lambda **_: CLIENT(transport=transport))


async def test_the_cached_contract_is_of_one_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kind and version change the key; whether its replicas are ready does not."""
    prints = []
    for sampler, state in ((JAX, ""), (VLLM, "ready"), (VLLM, "starting"), (VLLM | {"version": "0.33.0"}, "ready")):
        answers(monkeypatch, {"name": "harbortrainer", "sampler": sampler}, state)
        prints.append((await probe.identify("http://a:1")).fingerprint)
    assert prints[1] == prints[2] and len(set(prints)) == 3


async def test_the_cached_contract_is_of_one_code_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a repair changes is measured again."""
    (tmp_path / "repairs").mkdir()
    prints = []
    for text in ("1", "1", "2"):
        (tmp_path / "repairs" / "losses.py").write_text(text)
        answers(monkeypatch, {"name": "harbortrainer", "code": repairs.code_of(tmp_path)})
        prints.append((await probe.identify("http://a:1")).fingerprint)
    assert prints[0] == prints[1] != prints[2]


async def test_a_server_that_is_started_again_while_it_is_measured_leaves_no_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored: list[ServerReport] = []

    async def measured(session: Any, model: str, *_: Any) -> ServerReport:
        answers(monkeypatch, {"name": "harbortrainer", "instance": restarted})
        return ServerReport("http://a:1", model, "f", "2026-11-24T09:00:00+00:00", ServerFacts(reduction="unknown"), ())

    monkeypatch.setattr(probe, "load", lambda *_: None)
    monkeypatch.setattr(probe, "store", stored.append)
    monkeypatch.setattr(probe, "probe", measured)
    session: Any = SimpleNamespace(url="http://a:1", key="")
    for restarted in ("second", "first"):
        answers(monkeypatch, {"name": "harbortrainer", "instance": "first"})
        with contextlib.nullcontext() if restarted == "first" else pytest.raises(BackendError, match="started again"):
            await probe.load_or_probe(session, "m", say=print)
        assert len(stored) == (restarted == "first")


async def test_the_contract_names_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, {"name": "harbortrainer", "sampler": VLLM})
    report = ServerReport("http://a:1", "m", "f", "2026-11-22T09:00:00+00:00", ServerFacts(reduction="sum"), ())
    monkeypatch.setattr(probe, "load", lambda *_: report)
    session: Any = SimpleNamespace(url="http://a:1", key="")
    assert (await probe.contract_of(session, SELF_HOSTED, "m", print)).sampler == "vllm 0.32.0"


def test_a_resumed_run_names_a_change_of_its_sampler(tmp_path: Path) -> None:
    effective = tmp_path / "effective.json"
    assert sampler_change(effective, "vllm 0.32.0") == ()
    effective.write_text(json.dumps({"server": {"sampler": "jax 0.12.0"}}))
    [line] = sampler_change(effective, "vllm 0.32.0")
    assert "vllm 0.32.0 from here on, jax 0.12.0 until now" in line
    assert sampler_change(effective, "jax 0.12.0") == sampler_change(effective, "") == ()
    effective.write_text(json.dumps({"server": {"url": "of an earlier version"}}))
    assert sampler_change(effective, "vllm 0.32.0") == ()
