"""What computes a server's samples: in its fingerprint, the contract, effective.json, versions.json, and on resume."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import repairs
from harbortrainer.backend.contract import SELF_HOSTED, sampler_name
from harbortrainer.probe import probe
from harbortrainer.probe.report import ServerFacts, ServerReport, store
from harbortrainer.training.plan import sampler_change
from tests.support.failing_server import failing_server

JAX = {"kind": "jax", "version": "0.12.0", "replicas": 1}
VLLM = {"kind": "vllm", "version": "0.32.0", "replicas": 2}


@pytest.mark.parametrize(
    ("about", "name"), [({"sampler": VLLM}, "vllm 0.32.0"), ({}, ""), ({"sampler": "x"}, ""), ({"sampler": {}}, "")]
)
def test_a_sampler_is_its_kind_and_version(about: dict[str, Any], name: str) -> None:
    assert sampler_name(about) == name


async def fingerprints(*servers: dict[str, Any]) -> list[str]:
    """Of servers whose healthz says so, at one URL."""
    healthz: dict[str, Any] = {}
    with failing_server({"/api/v1/healthz": healthz}) as url:
        found = []
        for server in servers:
            healthz |= {"server": server, "sampler": {"replicas": [len(found)]}}
            found.append((await probe.identify(url)).fingerprint)
    return found


async def test_the_cached_contract_is_of_one_sampler_and_one_code_of_the_server(tmp_path: Path) -> None:
    """Their kind and version change the key, whether replicas are ready does not; what a repair changes is measured."""
    named = {"name": "harbortrainer"}
    samplers = (JAX, VLLM, VLLM, VLLM | {"version": "0.33.0"})
    one, two, again, newer = await fingerprints(*(named | {"sampler": sampler} for sampler in samplers))
    assert two == again and len({one, two, newer}) == 3
    (tmp_path / "repairs").mkdir()
    codes = []
    for text in ("1", "1", "2"):
        (tmp_path / "repairs" / "losses.py").write_text(text)
        codes.append(named | {"code": repairs.code_of(tmp_path)})
    one, same, other = await fingerprints(*codes)
    assert one == same != other


async def test_the_contract_names_the_sampler() -> None:
    with failing_server({"/api/v1/healthz": {"server": {"name": "harbortrainer", "sampler": VLLM}}}) as url:
        session: Any = SimpleNamespace(url=url, key="")
        known = (await probe.identify(url)).fingerprint
        store(ServerReport(url, "m", known, "2026-11-22T09:00:00+00:00", ServerFacts(reduction="sum"), ()))
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
