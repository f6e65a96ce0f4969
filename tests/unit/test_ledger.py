"""What became of every trial: durable lines, closed after a kill, counted once however often a step is repeated."""

from pathlib import Path

import pytest

from src.errors import UserError
from src.learning.trajectory import Outcome, Trajectory, Turn
from src.run.jsonl import append_line, cut_torn_line, read_lines
from src.run.ledger import Ledger

TURN = Turn(0, (1,), (2, 3), (-0.5, -0.5), 0)


def trajectory(name: str, reward: float | None = 1.0, task: str = "t") -> Trajectory:
    outcome = Outcome.COMPLETED if reward is not None else Outcome.INFRASTRUCTURE_ERROR
    times = {"environment": 1.0, "agent": 2.0, "total": 3.0}
    return Trajectory(task, name, (TURN,), reward, outcome, "" if reward is not None else "no disk", times=times)


def run_trial(ledger: Ledger, name: str, fate: str = "graded", task: str = "t") -> None:
    ledger.started(name, task, 1)
    ledger.ended(trajectory(name, 1.0 if fate == "graded" else None, task), fate)


def test_a_trials_line_says_how_and_where_it_ended_and_what_it_cost(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    run_trial(ledger, "a", "replaced by a-a2")
    started, ended = read_lines(tmp_path / "ledger.jsonl")
    assert (started["event"], started["trial"], started["attempt"]) == ("started", "a", 1)
    named = {key: ended[key] for key in ("outcome", "cause", "stage", "reward", "sampled_tokens", "seconds", "fate")}
    assert named == {
        "outcome": "infrastructure_error",
        "cause": "no disk",
        "stage": "agent",
        "reward": None,
        "sampled_tokens": 2,
        "seconds": 3.0,
        "fate": "replaced by a-a2",
    }


def test_the_funnel_counts_each_trial_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for name, fate in (("a", "replaced by a-a2"), ("a-a2", "graded"), ("b", "graded"), ("c", "dropped")):
        run_trial(ledger, name, fate)
    ledger.trained(0, {"a-a2": 0.5, "b": -0.5}, ["a-a2", "b"], 1)
    assert ledger.summary() == "trials: 4 started, 4 finished, 2 graded, 2 trained (1 replaced, 1 dropped)"
    assert ledger.metrics()["funnel/replaced"] == 1.0
    assert Ledger(tmp_path / "ledger.jsonl").metrics() == ledger.metrics(), "an earlier process's are counted too"


def test_updates_that_are_made_again_count_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for step in range(3):
        ledger.trained(step, {}, ["a", "b"], 1)
    again = Ledger(tmp_path / "ledger.jsonl")
    again.resumed(1)  # the checkpoint was made after one batch
    assert again.counts["trained"] == 2
    again.trained(1, {}, ["a", "b"], 1)
    assert again.counts["trained"] == Ledger(tmp_path / "ledger.jsonl").counts["trained"] == 4


def test_a_killed_process_leaves_no_trial_open(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    run_trial(ledger, "a")
    ledger.started("b", "t", 1)
    again = Ledger(tmp_path / "ledger.jsonl")
    assert again.counts["cancelled"] == 1 and again.counts["finished"] == 1
    last = read_lines(tmp_path / "ledger.jsonl")[-1]
    assert (last["trial"], last["outcome"], last["cause"]) == ("b", "cancelled", "the process was killed")
    assert Ledger(tmp_path / "ledger.jsonl").counts["cancelled"] == 1


def test_quarantined_tasks_stay_so(tmp_path: Path) -> None:
    run_trial(Ledger(tmp_path / "ledger.jsonl"), "a", "quarantined", "bad")
    assert Ledger(tmp_path / "ledger.jsonl").quarantined == {"bad": "infrastructure_error: no disk"}


def test_a_torn_line_is_cut_before_the_next_one_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    run_trial(Ledger(path), "a")
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    again = Ledger(path)
    run_trial(again, "b")
    assert [record["trial"] for record in read_lines(path)] == ["a", "a", "b", "b"]
    assert [record["event"] for record in read_lines(path)][1] == "ended", "a's end was lost: it was killed"


@pytest.mark.parametrize(
    ("whole", "damaged"), [(b'"sampled_tokens": 2', b'"sampled_tokens": 3'), (b'{"time', b'#"time')]
)
def test_a_damaged_line_is_refused_by_its_number(tmp_path: Path, whole: bytes, damaged: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for name in ("a", "b"):
        run_trial(ledger, name)
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + rest.replace(whole, damaged, 1))
    with pytest.raises(UserError, match="line 2 "):
        Ledger(path)


def test_cutting_touches_only_what_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    cut_torn_line(path)
    append_line(path, {"a": 1}, checked=True)
    before = path.read_bytes()
    cut_torn_line(path)
    assert path.read_bytes() == before and read_lines(path) == [{"a": 1}]
