"""The probe's own parts: reports, their cache, judgements. What it finds on real servers: tests/integration."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harbortrainer.durable.files import cache_folder
from harbortrainer.errors import BackendError
from harbortrainer.probe import losses, probe, session
from harbortrainer.probe.losses import VARIANTS, norm_places, places
from harbortrainer.probe.noise import nearer
from harbortrainer.probe.report import MEASUREMENT, ProbeFindings, Row, ServerFacts, ServerReport, load, store
from tests.support.failing_server import failing_server
from tests.support.virtual_time import in_virtual_time


@pytest.fixture
def report() -> ServerReport:
    facts = ServerFacts(losses={"ppo": ("clip_low_threshold",)}, adam={"eps": None, "beta1": True}, reduction="sum")
    rows = (Row("losses", "ppo", "accepted", "same"), Row("server", "name", "2 ms", "info", "a note"))
    return ServerReport("http://a:1", "m", "f1", "2026-11-21T09:00:00+00:00", facts, rows)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 0, "facts": {}}'])
def test_what_is_no_report_is_refused(text):
    with pytest.raises(ValueError):
        ServerReport.from_json(text)


def test_the_cache_knows_a_server_by_fingerprint_and_model(report):
    assert load("f1", "m") is None
    store(report)
    assert load("f1", "m") == report
    for other in (("f2", "m"), ("f1", "n")):
        assert load(*other) is None


def test_a_broken_cache_file_is_measured_again(report):
    store(report)
    [file] = cache_folder("contracts").iterdir()
    file.write_text(file.read_text()[:100])
    assert load("f1", "m") is None


@pytest.mark.parametrize("ends", ["whole", "failed in a part", "started again"])
async def test_only_a_whole_measurement_of_one_server_is_kept(
    ends: str, report: ServerReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = report.rows + (Row("losses", MEASUREMENT, "failed: no answer", "unclear"),) * (ends == "failed in a part")
    healthz = {"server": {"name": "harbortrainer", "instance": "first"}}

    async def measured(*_: object) -> ServerReport:
        if ends == "started again":
            healthz["server"]["instance"] = "second"
        return replace(report, rows=rows)

    monkeypatch.setattr(probe, "probe", measured)
    with failing_server({"/api/v1/healthz": healthz}) as url:
        session: Any = SimpleNamespace(url=url, key="")
        if ends == "started again":
            with pytest.raises(BackendError, match="started again while it was measured"):
                await probe.load_or_probe(session, "m")
        else:
            assert (await probe.load_or_probe(session, "m")).rows == rows
    assert (load("f1", "m") is not None) == (ends == "whole")


def gains(kind: str, curve: Callable[[float], float], noise: float = 0.0, seed: int = 0) -> list[float]:
    """Of losses.programme on a server that sums or averages; `curve`: gain by multiple of the plain rate."""
    rng = np.random.default_rng(seed)
    multiples = [m for v in VARIANTS for m in (1, v.factor, v.factor if kind == "sum" else 1, v.factor)]
    return [curve(m) + rng.uniform(-noise, noise) for m in [*multiples, 1]]


def verdict(gains: list[float], noise: float, norms: Sequence[float | None] = (None,) * 9) -> str:
    findings = ProbeFindings()
    found = losses._by_norms_where_hidden(VARIANTS, places(gains, noise), norm_places(norms), noise)
    losses.report(findings, found, noise)
    return findings.facts["reduction"]


def smollm2(multiple: float) -> float:
    """Gains of steps of 1, 2 and 4 times 1 nat, measured on SmolLM2-135M in float32: far from linear."""
    return {1.0: 1.0, 2.0: 1.72, 4.0: 2.1}[multiple]


@pytest.mark.parametrize(("kind", "expected"), [("sum", "sum"), ("mean", "example_mean")])
@pytest.mark.parametrize("curve", [smollm2, float])
def test_the_reduction_of_a_real_model_is_measured(kind, expected, curve):
    assert verdict(gains(kind, curve), 1e-4) == expected


def test_a_step_that_changes_with_the_data_in_another_way_is_unknown():
    assert verdict([1, 4, 2, 4, 1, 2, 1.5, 2, 1], 1e-4) == "unknown"
    assert verdict([1, 4, 4, 4, 1, 2, 1, 2, 1], 1e-4) == "unknown"  # a sum of tokens, a mean of datums
    assert verdict([0.0] * 9, 1e-4) == "unknown"


def test_reported_norms_decide_only_where_noise_hides_the_effect():
    sums = [230, 229, 918, 228, 229, 229, 458, 228, 229]
    hidden = gains("sum", float, 3.0)
    assert verdict(hidden, 3.0) == "unknown"
    assert verdict(hidden, 3.0, sums) == "sum"
    assert verdict(hidden, 3.0, [100.0] * 9) == "example_mean"
    assert verdict(gains("mean", float), 1e-4, sums) == "example_mean"


def test_the_time_limit_is_for_each_answer_and_not_for_a_whole_chain():
    async def answer(after_sec: float) -> float:
        await asyncio.sleep(after_sec)
        return after_sec

    async def chains() -> None:
        limit = session.CALL_LIMIT_SEC
        seconds = [0.4 * limit, 0.8 * limit, 1.2 * limit]
        assert await session._all([answer(after) for after in seconds]) == seconds
        with pytest.raises(BackendError, match="no answer within"):
            await session._all([answer(0.1), answer(600 * limit)])

    in_virtual_time(chains())


async def test_a_fault_in_one_part_is_a_row():
    async def fails() -> None:
        raise BackendError("gone")

    findings = ProbeFindings()
    await findings.section("losses", fails)
    assert (findings.rows[0].verdict, findings.rows[0].value) == ("unclear", "failed: gone")


def test_a_setting_without_any_effect_to_see_is_unclear():
    assert nearer(1.0, 2.0, 2.0, 0.0) is None
