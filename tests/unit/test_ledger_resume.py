"""What the ledger of an earlier process says about where the next one goes on."""

from pathlib import Path

from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.learning.treatment import AFTER_OUTAGE
from harbortrainer.run.ledger import Ledger


def ended(ledger: Ledger, place: str, attempt: int, fate: str) -> None:
    name = place if attempt == 1 else f"{place}-a{attempt}"
    ledger.started(name, "t", attempt)
    ledger.ended(Trajectory("t", name, (), None, Outcome.INFRASTRUCTURE_ERROR, "gone", attempt), fate)


def test_attempts_at_each_place_are_remembered(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ended(ledger, "s000000-p00-g00", 1, "replaced by s000000-p00-g00-a2")
    ended(ledger, "s000000-p00-g00", 2, "replaced by s000000-p00-g00-a3")
    ended(ledger, "s000000-p00-g00", 3, f"replaced by s000000-p00-g00-a4 {AFTER_OUTAGE}")
    ended(ledger, "s000000-p00-g01", 1, "cancelled")
    ended(ledger, "s000000-p00-g02", 1, "replaced by s000000-p00-g02-a2")
    ended(ledger, "s000000-p00-g02", 2, "dropped")
    ledger.started("s000000-p00-g00-a4", "t", 4)  # and the process is killed
    for again in (ledger, Ledger(tmp_path / "ledger.jsonl")):
        assert again.attempts("s000000-p00-g00") == (3, 2), "an outage costs no attempt; the fourth one is run again"
        assert again.attempts("s000000-p00-g01") == (0, 0), "a cancelled one is run again under its name"
        assert again.attempts("s000000-p00-g02") == (2, 0), (
            "a place that was given up gets new attempts, with new names"
        )
        assert again.attempts("s000000-p09-g00") == (0, 0)


def test_faults_in_a_row_are_remembered_until_a_grade(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ended(ledger, "s000000-p00-g00", 1, "replaced by s000000-p00-g00-a2")
    ledger.ended(Trajectory("t", "s000000-p00-g00-a2", (), 1.0, Outcome.COMPLETED, attempt=2), "graded")
    ended(ledger, "s000000-p00-g01", 1, f"replaced by s000000-p00-g01-a2 {AFTER_OUTAGE}")
    ended(ledger, "s000000-p00-g01", 2, "replaced by s000000-p00-g01-a3")
    ended(ledger, "s000000-p00-g01", 3, "dropped")
    ended(ledger, "s000000-p00-g02", 1, "cancelled")
    for again in (ledger, Ledger(tmp_path / "ledger.jsonl")):
        assert [fault.trial_name for fault in again.faults_in_a_row] == ["s000000-p00-g01-a2", "s000000-p00-g01-a3"]
        assert {(fault.task_name, fault.turns, fault.outcome, fault.detail) for fault in again.faults_in_a_row} == {
            ("t", (), Outcome.INFRASTRUCTURE_ERROR, "gone")
        }
