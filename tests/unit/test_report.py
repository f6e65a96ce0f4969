"""The report's page: its numbers are the files', nothing that a run wrote is markup, odd runs get a page too."""

import json
import re
from pathlib import Path

import pytest

from harbortrainer.cli.main import main
from harbortrainer.durable.jsonl import append_line, read_lines
from harbortrainer.learning.trajectory import TrialName
from harbortrainer.report.trials import funnel, read_trials
from harbortrainer.report.write import packed, write_report
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.trajectories import read_trajectory
from harbortrainer.stats import estimate_reward
from tests.support.made_run import MadeRun
from tests.support.report_parts import blobs, only_run, small_run, unpacked

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&'\"\u2028]]>-->"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    """One run for the tests that write nothing but its page."""
    return small_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def own(tmp_path: Path) -> MadeRun:
    """A run for a test that changes it."""
    return small_run(tmp_path / "run")


def test_every_metric_of_every_step_is_in_the_page(made: MadeRun) -> None:
    rows = read_lines(made.path / "metrics.jsonl")
    page = write_report(made.path)
    assert page == made.path / "report.html"
    data = blobs(page)["data"]
    metrics = data["runs"][0]["metrics"]
    assert metrics["steps"] == [0, 1, 2]
    for row, step in zip(rows, range(3), strict=True):
        shown = {name: values[step] for name, values in metrics["values"].items() if values[step] is not None}
        assert shown == pytest.approx({name: value for name, value in row.items() if name != "global_step"})
    assert set(data["units"]) == set(metrics["values"])
    assert metrics["odd"] == {}


def test_every_trial_is_a_row_as_the_ledger_has_it(made: MadeRun) -> None:
    table = only_run(write_report(made.path))["trials"]
    ended = {r["trial"]: r for r in read_lines(made.path / "ledger.jsonl") if r["event"] == "ended"}
    trained = [r for r in read_lines(made.path / "ledger.jsonl") if r["event"] == "trained"]
    advantages = {name: value for r in trained for name, value in r["advantages"].items()}
    assert sorted(table["name"]) == sorted(ended)
    for i, name in enumerate(table["name"]):
        for key in ("reward", "turns", "prompt_tokens", "sampled_tokens", "seconds"):
            assert table[key][i] == ended[name][key]
        assert table["texts"][table["outcome"][i]] == ended[name]["outcome"]
        assert table["texts"][table["cause"][i]] == ended[name]["cause"]
        assert table["advantage"][i] == advantages.get(name)
        assert table["step"][i] == (trial := TrialName.parse(name)).step + (trial.kind == "step"), (
            "the step of the row in metrics.jsonl"
        )


def test_the_bands_are_the_intervals_of_the_batchs_tasks(made: MadeRun) -> None:
    shown = only_run(write_report(made.path))["intervals"]
    trials = [t for t in read_trials(read_lines(made.path / "ledger.jsonl")) if t.folder == "step_000001"]
    by_task = [
        [t.reward for t in trials if t.task == task and t.reward is not None] for task in {t.task for t in trials}
    ]
    estimate = estimate_reward([rewards for rewards in by_task if rewards])
    at = shown["steps"].index(2)
    assert [shown[name][at] for name in ("mean", "low", "high")] == pytest.approx(
        [estimate.mean, estimate.low, estimate.high]
    )


def test_the_funnel_is_the_ledgers(own: MadeRun) -> None:
    own.ledger.resumed(1)
    own.train(1)  # made again: its trials count twice, its update once
    records = read_lines(own.path / "ledger.jsonl")
    shown = funnel(records)
    together = {key: sum(part.get(key, 0) for part in shown.values()) for part in shown.values() for key in part}
    counts = Ledger(own.path / "ledger.jsonl").counts
    assert together == {key: counts[key] for key in together} and together["trained"] > 0
    assert all(count == 0 for key, count in counts.items() if key not in together)
    assert shown["evaluation"]["started"] == 12


def test_a_panel_has_the_tokens_and_what_harbor_left(made: MadeRun) -> None:
    everything = blobs(write_report(made.path))
    run, texts = everything["data"]["runs"][0], everything["panel0"]
    index = run["trials"]["name"].index("s000001-p01-g02")
    shown = everything[f"panel{run['panels'][str(index)]}"]
    stored = read_trajectory(made.path / "trajectories" / "step_000001" / "s000001-p01-g02.npz")
    turn, first = stored.turns[0], shown["tokens"]["turns"][0]
    assert [shown["tokens"]["ids"][i] for i in first["sampled"]] == list(turn.completion_tokens_T)
    assert [shown["tokens"]["ids"][i] for i in first["seen"]] == list(turn.new_tokens_T)
    assert first["logprobs"] == pytest.approx(turn.logprobs_T, abs=5e-4)
    message = shown["messages"][0]["text"]
    assert (texts[message] if isinstance(message, int) else message).startswith("You are an AI assistant")
    assert shown["messages"][1]["calls"] == ["ls -la"]
    assert "1 passed" in shown["verifier"]["test-stdout.txt"]
    assert "agent/trajectory.json" in shown["files"] and "trial.log" not in shown["files"]


def test_bars_of_the_timeline_are_harbors_times(made: MadeRun) -> None:
    timeline = only_run(write_report(made.path))["timelines"]["step_000001"]
    own = [bar for bar in timeline["bars"] if bar[0] == timeline["bars"][0][0]]
    lengths = {stage: length for _, stage, _, length in own}
    assert [lengths[stage] for stage in range(4)] == pytest.approx([1.2, 0.2, 20.0, 0.4])


def test_nothing_that_a_run_wrote_is_markup(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "a&<b>", tasks=1, group=2, turns=1, text=ATTACK)
    run.train(0)
    (run.path / "config.json").write_text(json.dumps({"model_name": ATTACK, "run_name": ATTACK}))
    append_line(run.path / "metrics.jsonl", {"global_step": 2, ATTACK: 1.0})
    text = write_report(run.path).read_text()
    assert "alert(" not in text and "onerror" not in text and "<b>" not in text
    assert text.count("<script") == text.count("</script>") and text.count("<script>") == 1
    everything = blobs(run.path / "report.html")
    assert ATTACK in everything["data"]["units"]
    assert any(ATTACK in json.dumps(part, ensure_ascii=False).replace('\\"', '"') for part in everything.values())


def test_a_page_needs_no_other_file(made: MadeRun) -> None:
    text = write_report(made.path).read_text()
    assert "script-src 'sha256-" in text and "default-src 'none'" in text
    assert not re.search(r'(src|href)="(?!data:,)', text)


def test_runs_are_compared_on_one_page(own: MadeRun, tmp_path: Path) -> None:
    other = MadeRun(tmp_path / "elsewhere" / "other run", tasks=1, group=2, turns=1)
    other.train(0)
    page = write_report(own.path, other.path, out=tmp_path / "both.html")
    runs = blobs(page)["data"]["runs"]
    assert [(run["name"], run["root"]) for run in runs] == [("run", "run/"), ("other run", "elsewhere/other%20run/")]
    assert only_run(write_report(own.path))["root"] == ""


@pytest.mark.parametrize("out", ["nowhere/page.html", "folder"])
def test_a_page_that_cannot_be_written_is_one_line(
    out: str, own: MadeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    assert main(["report", str(own.path), f"out={tmp_path / out}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: out={tmp_path / out}: no page was made") and error.count("\n") == 1


def test_what_a_continued_run_changed_is_told(own: MadeRun) -> None:
    change = {"learning_rate": {"before": 1e-4, "now": 1e-5}}
    append_line(own.path / "config_changes.jsonl", {"time": 1.0, "from_step": 1, "changes": change})
    expected = {"step": 2, "field": "learning_rate", "before": 1e-4, "now": 1e-5}
    assert only_run(write_report(own.path))["changes"] == [expected]


def test_packed_values_come_back_and_are_no_markup() -> None:
    value = {"a": [ATTACK, None, 1.5, float("inf")]}
    assert unpacked(packed(value)) == {"a": [ATTACK, None, 1.5, None]}
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", packed(value))
