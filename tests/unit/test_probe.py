"""The probe's own parts: reports, their cache, judgements. What it finds on real servers: tests/integration."""

import pytest
from rich.console import Console

from src.caches import cache_folder
from src.errors import BackendError
from src.probe import cache
from src.probe.findings import Findings
from src.probe.optimizer import _judge_reduction, _shrunk, share
from src.probe.parity import bootstrap
from src.probe.report import Facts, Row, ServerReport
from src.probe.table import show


@pytest.fixture
def report() -> ServerReport:
    facts = Facts(
        losses={"ppo": ("clip_low_threshold",)}, adam={"eps": None, "beta1": True}, reduction="sum", ttl=False
    )
    rows = (Row("losses", "ppo", "accepted", "same"), Row("times", "healthz", "2 ms", "info", "a note"))
    return ServerReport("http://a:1", "m", "f1", "2026-11-21T09:00:00+00:00", facts, rows)


def test_a_report_survives_json(report):
    assert ServerReport.from_json(report.to_json()) == report


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1}', '{"format": 0, "facts": {}}'])
def test_what_is_no_report_is_refused(text):
    with pytest.raises(ValueError):
        ServerReport.from_json(text)


def test_the_cache_knows_a_server_by_fingerprint_and_model(report, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.load("f1", "m") is None
    cache.store(report)
    assert cache.load("f1", "m") == report
    for other in (("f2", "m"), ("f1", "n")):
        assert cache.load(*other) is None


def test_a_broken_cache_file_is_measured_again(report, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache.store(report)
    [file] = cache_folder("contracts").iterdir()
    file.write_text(file.read_text()[:100])
    assert cache.load("f1", "m") is None


def test_the_table_shows_every_row(report, capsys):
    show(report, Console(width=120))
    printed = capsys.readouterr().out
    for text in ("ppo", "accepted", "2 ms", "a note", "1 same as Tinker"):
        assert text in printed


@pytest.mark.parametrize(("value", "expected"), [(0.05, True), (0.3, None), (0.9, False), (-0.9, False)])
def test_between_the_margins_is_unclear(value, expected):
    assert share(value, 1.0, 0.1, 0.5) is expected


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([4.1, 1.9, 2.0], "sum"),
        ([1.0, 1.05, 0.95], "example_mean"),
        ([1.0, 2.0, 2.0], "unknown"),
        ([2.0, 1.5, 1.5], "unknown"),
    ],
)
def test_reduction_is_told_by_three_ratios(ratios, expected):
    findings = Findings()
    _judge_reduction(findings, ratios)
    assert findings.facts["reduction"] == expected


def test_decay_below_the_noise_is_unclear():
    assert _shrunk(moved=0.0, gained=10.0, noise=0.1) is None
    assert _shrunk(moved=0.0, gained=10.0, noise=1e-4) is False
    assert _shrunk(moved=-0.02, gained=10.0, noise=1e-4) is True


async def test_a_fault_in_one_part_is_a_row():
    async def fails() -> None:
        raise BackendError("gone")

    findings = Findings()
    assert not await findings.section("losses", fails)
    assert (findings.rows[0].verdict, findings.rows[0].value) == ("unclear", "failed: gone")


def test_the_interval_holds_the_mean_and_is_reproducible():
    import numpy as np

    values = np.random.default_rng(1).normal(0.5, 0.1, 50)
    low, high = bootstrap(values)
    assert low < values.mean() < high
    assert (low, high) == bootstrap(values)
