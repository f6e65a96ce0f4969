"""The report's lanes of sampler and trainer, and the age of what each step trained on."""

import random
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.durable.jsonl import append_line, read_lines
from harbortrainer.report.lanes import BINS, MOST_BARS, at_once, lanes, length, under_way, union
from harbortrainer.report.trials import TrialRow
from harbortrainer.report.write import write_report
from harbortrainer.rollout.level import Why
from tests.support.made_run import MadeRun
from tests.support.report_parts import only_run
from tests.support.report_walk import Walk


def trial(name: str, began: float, ended: float | None) -> TrialRow:
    return TrialRow(name, started=began, ended=ended)


def run_of(steps: int, *, overlap: float) -> Any:
    """Steps of 10 s of trials and 4 s of update, of which `overlap` s are beside the next step's trials."""
    trials, records, rows, now = [], [], [], 1000.0
    for step in range(steps):
        trials += [trial(f"s{step:06d}-p00-g{member:02d}", now, now + 10) for member in range(4)]
        records.append({"event": "trained", "step": step, "time": now + 14})
        rows.append({"global_step": step + 1, "time/update": 3.0, "time/publish": 1.0})
        now += 14 - overlap
    return records, trials, rows


@pytest.mark.parametrize(("overlap", "both"), [(0.0, 3 * 1.0), (4.0, 3 * 4.0)])
def test_lanes_have_the_time_of_trials_and_updates_and_of_both(overlap: float, both: float) -> None:
    """The next trials start at the end of an update (its publishing is beside them), or 4 s earlier."""
    (lane,) = lanes(*run_of(4, overlap=overlap))
    assert lane["label"] == "all 4 updates"
    assert lane["sampling"] == pytest.approx(4 * 10)
    assert lane["training"] == pytest.approx(4 * 4)
    assert lane["both"] == pytest.approx(both)
    updates = [bar for bar in lane["bars"] if bar[0] == 0]
    assert [bar[3] for bar in updates] == [1, 2, 3, 4] and updates[0][1:3] == pytest.approx((11.0, 3.0))
    assert sum(lane["trials"]["training"]) * lane["seconds"] / BINS == pytest.approx(4 * 4 * 10, rel=0.01)


def test_a_long_run_has_its_last_steps_apart_and_few_bars() -> None:
    last, whole = lanes(*run_of(2000, overlap=2.0))
    assert (last["label"], whole["label"]) == ("the last 8 updates", "all 2000 updates")
    assert len([bar for bar in last["bars"] if bar[0] == 0]) == 8
    assert len(whole["bars"]) <= MOST_BARS


@pytest.mark.parametrize("missing", ["records", "rows", "trials"])
def test_without_times_no_lane_is_drawn(missing: str) -> None:
    records, trials, rows = run_of(3, overlap=0.0)
    given = {"records": records, "trials": trials, "rows": rows} | {missing: []}
    assert lanes(given["records"], given["trials"], given["rows"]) == []


def test_a_trial_under_way_has_no_bar_and_an_evaluation_its_own() -> None:
    records, trials, rows = run_of(3, overlap=0.0)
    trials += [trial("e000002-p00-g00", 1014.0, 1020.0), trial("s000003-p00-g00", 1040.0, None)]
    (lane,) = lanes(records, trials, rows)
    assert sum(lane["trials"]["evaluation"]) * lane["seconds"] / BINS == pytest.approx(6, rel=0.01)


def test_spans_by_part_agree_with_counting_them() -> None:
    rng = random.Random(0)
    spans = [(begin, begin + rng.uniform(0, 30)) for begin in (rng.uniform(-10, 100) for _ in range(200))]
    window = (0.0, 100.0)
    parts = under_way(spans, window)
    for part in range(0, BINS, 37):
        low, high = part * 100 / BINS, (part + 1) * 100 / BINS
        held = sum(max(0.0, min(end, high) - max(begin, low)) for begin, end in spans) / (high - low)
        assert parts[part] == pytest.approx(held, abs=0.02)
    points = [n / 100 for n in range(-1000, 14000)]
    covered = sum(any(begin <= at < end for begin, end in spans) for at in points) / 100
    assert length(union(spans)) == pytest.approx(covered, abs=1.0)


def test_the_last_number_of_agents_is_named_with_its_reason() -> None:
    rows = [{"rollout/parallel_limit": 8.0, "rollout/parallel_why": 0.0}]
    rows += [{"rollout/parallel_limit": 32.0, "rollout/parallel_why": float(Why.LATENCY)}, {"eval/tasks": 1.0}]
    assert at_once(rows) == {"agents": 32, "why": Why.LATENCY.words}
    assert at_once([{"time/step": 1.0}]) == {}


def test_the_page_draws_lanes_ages_and_agents(tmp_path: Path, walked: Walk) -> None:
    made = MadeRun(tmp_path / "run", tasks=2, group=4, turns=2)
    for step in range(3):
        made.train(step)
    plain = walked(write_report(made.path))
    assert "Sampler and trainer" in plain["sections"]["time"] and "Age of the turns" not in plain["sections"]["time"]
    rows = read_lines(made.path / "metrics.jsonl")
    (made.path / "metrics.jsonl").unlink()
    for number, row in enumerate(rows):
        ages = {f"off_policy/turns_by_age/{age}": 10.0 * (age + number) for age in range(2 + number % 2)}
        more = {"rollout/parallel_limit": 16.0, "rollout/parallel_why": float(Why.MORE)}
        append_line(made.path / "metrics.jsonl", row | ages | more)
    drawn = walked(write_report(made.path))
    text = drawn["sections"]["time"]
    assert "Age of the turns that a step trained on" in text and "2 steps old" in text and drawn["bare"] == []
    assert f"16 agents at once at last: {Why.MORE.words}" in text
    assert len(only_run(made.path / "report.html")["lanes"]) == 1
