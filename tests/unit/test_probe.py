"""The probe's own parts: reports, their cache, judgements. What it finds on real servers: tests/integration."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tinker
from rich.console import Console

from harbortrainer.durable.files import cache_folder
from harbortrainer.errors import BackendError
from harbortrainer.probe import losses, probe, sampling, session
from harbortrainer.probe.losses import DATUMS, VARIANTS, datums_of, norm_places, places
from harbortrainer.probe.noise import nearer, scatter
from harbortrainer.probe.report import MEASUREMENT, ProbeFindings, Row, ServerFacts, ServerReport, load, show, store
from tests.support.failing_server import failing_server
from tests.support.virtual_time import in_virtual_time


@pytest.fixture
def report() -> ServerReport:
    facts = ServerFacts(losses={"ppo": ("clip_low_threshold",)}, adam={"eps": None, "beta1": True}, reduction="sum")
    rows = (Row("losses", "ppo", "accepted", "same"), Row("server", "name", "2 ms", "info", "a note"))
    return ServerReport("http://a:1", "m", "f1", "2026-11-21T09:00:00+00:00", facts, rows)


def test_a_report_survives_json(report):
    assert ServerReport.from_json(report.to_json()) == report


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 0, "facts": {}}'])
def test_what_is_no_report_is_refused(text):
    with pytest.raises(ValueError):
        ServerReport.from_json(text)


def test_the_cache_knows_a_server_by_fingerprint_and_model(report, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load("f1", "m") is None
    store(report)
    assert load("f1", "m") == report
    for other in (("f2", "m"), ("f1", "n")):
        assert load(*other) is None


def test_a_broken_cache_file_is_measured_again(report, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store(report)
    [file] = cache_folder("contracts").iterdir()
    file.write_text(file.read_text()[:100])
    assert load("f1", "m") is None


@pytest.mark.parametrize("ends", ["whole", "failed in a part", "started again"])
async def test_only_a_whole_measurement_of_one_server_is_kept(
    ends: str, report: ServerReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = report.rows + (Row("losses", MEASUREMENT, "failed: no answer", "unclear"),) * (ends == "failed in a part")
    healthz = {"server": {"name": "harbortrainer", "instance": "first"}}

    async def measured(*_: object) -> ServerReport:
        if ends == "started again":
            healthz["server"]["instance"] = "second"
        return replace(report, rows=rows)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(probe, "probe", measured)
    with failing_server({"/api/v1/healthz": healthz}) as url:
        session: Any = SimpleNamespace(url=url, key="")
        if ends == "started again":
            with pytest.raises(BackendError, match="started again while it was measured"):
                await probe.load_or_probe(session, "m")
        else:
            assert (await probe.load_or_probe(session, "m")).rows == rows
    assert (load("f1", "m") is not None) == (ends == "whole")


def test_the_table_shows_every_row(report, capsys):
    show(report, Console(width=120))
    printed = capsys.readouterr().out
    for text in ("ppo", "accepted", "2 ms", "a note", "1 same as Tinker"):
        assert text in printed


@pytest.mark.parametrize(
    ("value", "noise", "expected"),
    [
        (0.1, 0.1, True),
        (0.4, 0.1, None),
        (0.4, 0.01, True),
        (0.9, 0.1, False),
        (0.0, 0.4, None),
        (float("nan"), 0, None),
    ],
)
def test_what_noise_could_turn_is_unclear(value, noise, expected):
    assert nearer(value, 0.0, 1.0, noise) is expected


def test_a_setting_without_any_effect_to_see_is_unclear():
    assert nearer(1.0, 2.0, 2.0, 0.0) is None


@pytest.mark.parametrize("n", [4, 6, 20])
def test_gains_that_fall_steadily_have_no_scatter(n):
    steady = 3.0 - 0.1 * np.arange(n)
    assert scatter(steady.tolist()) == pytest.approx(0.0, abs=1e-9)
    off = np.random.default_rng(0).normal(0, 0.1, n)
    assert 0.05 < scatter((steady + off).tolist()) < 0.5


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


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("kind", "expected"), [("sum", "sum"), ("mean", "example_mean")])
def test_noise_never_turns_the_verdict(kind, expected, seed):
    assert verdict(gains(kind, float, 0.1, seed), 0.1) == expected
    assert verdict(gains(kind, float, 0.6, seed), 0.6) == "unknown"


def test_a_step_that_changes_with_the_data_in_another_way_is_unknown():
    assert verdict([1, 4, 2, 4, 1, 2, 1.5, 2, 1], 1e-4) == "unknown"
    assert verdict([1, 4, 4, 4, 1, 2, 1, 2, 1], 1e-4) == "unknown"  # a sum of tokens, a mean of datums
    assert verdict([0.0] * 9, 1e-4) == "unknown"


@pytest.mark.parametrize(
    ("scale", "error", "meaning"),
    [
        (1.0, 0.01, "sum"),
        (0.8, 0.2, "sum"),
        (2.0, 0.01, "unknown"),
        (1.7, 0.01, "unknown"),
        (1.0, 0.6, "unknown"),
        (24.0, 1.0, "example_mean"),
        (48.0, 1.0, "unknown"),
    ],
)
def test_the_gain_for_a_reported_norm_shows_whether_datums_are_averaged(scale, error, meaning):
    result = datums_of(scale, error)
    assert (result.what, result.meaning) == (DATUMS, meaning)


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


class Scored:
    """A training client whose logprobs are all `logprob`; as a sampling client it gives `scored` for a prompt."""

    def __init__(self, logprob: float, scored: float = 0.0) -> None:
        self.logprob, self.scored = logprob, scored

    async def forward_backward(self, data: Sequence[tinker.Datum], loss_fn: str) -> object:
        values = [SimpleNamespace(data=[self.logprob] * datum.model_input.length) for datum in data]
        return SimpleNamespace(loss_fn_outputs=[{"logprobs": one} for one in values])

    async def optim_step(self, adam: tinker.AdamParams) -> object:
        return SimpleNamespace(metrics={})

    async def sample(self, prompt: tinker.ModelInput, *rest: object, include_prompt_logprobs: bool) -> object:
        assert prompt.length > session.N_TOKENS
        return SimpleNamespace(prompt_logprobs=[None, *[self.scored] * (prompt.length - 1)])


class Waiting:
    """A ProbeSession's waiting, with the noise that it has measured."""

    token_noise = 1e-6
    client = Scored(-2.0)

    async def wait(self, what: str, work: Awaitable[object]) -> object:
        return await work


@pytest.mark.parametrize(("sampled", "words"), [(-2.02, ""), (-2.8, "differ by 0.8"), (float("nan"), "differ by nan")])
async def test_samples_of_another_policy_than_the_trained_one_are_a_fact(sampled, words):
    findings, sample = (
        ProbeFindings(),
        tinker.SampledSequence("length", "", _tokens_list=[5] * 8, _logprobs_list=[sampled] * 8),
    )
    waiting: Any = Waiting()
    await sampling._agreement(waiting, waiting.client, sample, sample, findings)
    fact = findings.facts.get("wrong", "")
    assert fact.count("sampler against trainer, temperature") == (2 if words else 0) and words in fact
    assert {row.verdict for row in findings.rows} == {"differs" if words else "same"}


@pytest.mark.parametrize(("scored", "shows"), [(-2.0, False), (-2.6, True)])
async def test_padding_that_shows_is_a_fact(scored, shows):
    findings = ProbeFindings()
    waiting: Any = Waiting()
    sampler: Any = Scored(-2.0, scored)
    await sampling._padding(waiting, sampler, findings)
    assert findings.facts.get("wrong", "").startswith("the same tokens with other padding: logprobs") is shows
    assert [row.verdict for row in findings.rows] == ["differs" if shows else "same"]


async def test_a_fault_in_one_part_is_a_row():
    async def fails() -> None:
        raise BackendError("gone")

    findings = ProbeFindings()
    await findings.section("losses", fails)
    assert (findings.rows[0].verdict, findings.rows[0].value) == ("unclear", "failed: gone")
