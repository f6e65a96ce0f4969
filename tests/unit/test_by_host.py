"""Trials by host: what the ledger says of each, and its sums over all processes of a run."""

from pathlib import Path

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.run.by_host import MOST, HostCounts
from harbortrainer.run.ledger import Ledger

A, B, C = (f"s000000-p00-g0{member}" for member in range(3))


def trial(name: str, reward: float | None = 1.0, start_sec: float = 2.0) -> Trajectory:
    outcome = Outcome.COMPLETED if reward is not None else Outcome.INFRASTRUCTURE_ERROR
    return Trajectory("t", name, (), reward, outcome, times={"environment": start_sec} if start_sec else {})


def test_both_lines_of_a_trial_name_its_host_and_the_next_process_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.started(A, "t", 1, "h1")
    ledger.started(B, "t", 1, "h2")
    ledger.started(C, "t", 1)
    ledger.ended(trial(A), "graded")
    ledger.ended(trial(B, None, 0.0), f"replaced by {B}-a2")
    ledger.ended(trial(C), "graded")
    hosts = [(record.get("host"), record.get("start_sec")) for record in read_lines(path)]
    assert hosts == [("h1", None), ("h2", None), (None, None), ("h1", 2.0), ("h2", None), (None, None)]
    ledger.started(f"{B}-a2", "t", 2, "h1")
    ledger.ended(trial(f"{B}-a2", start_sec=4.0), "graded")
    found = {name: value for name, value in Ledger(path).metrics().items() if name.startswith("hosts/")}
    assert found == {
        "hosts/trials/h1": 2.0,
        "hosts/faults/h1": 0.0,
        "hosts/start_sec/h1": 3.0,
        "hosts/trials/h2": 1.0,
        "hosts/faults/h2": 1.0,
    }


def test_of_many_hosts_those_with_the_most_trials_have_metrics() -> None:
    lines = [
        {"event": "ended", "trial": f"{host}-{n}", "host": f"h{host}", "fate": fate, "reward": 1.0}
        for host in range(30)
        for n in range(host + 1)
        for fate in ("graded", "cancelled")
    ]
    found = HostCounts(lines).metrics()
    assert found["hosts/trials/h29"] == 30.0, "cancelled ones are not counted"
    assert sum(name.startswith("hosts/trials/") for name in found) == MOST
    assert "hosts/trials/h29" in found and "hosts/trials/h9" not in found
