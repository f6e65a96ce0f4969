"""The age of what each step trained on, in the report."""

from pathlib import Path

from harbortrainer.durable.jsonl import append_line, read_lines
from harbortrainer.report.write import write_report
from tests.support.made_run import MadeRun
from tests.support.report_walk import Walk


def test_the_page_draws_ages(tmp_path: Path, walked: Walk) -> None:
    made = MadeRun(tmp_path / "run", tasks=2, group=4, turns=2)
    for step in range(3):
        made.train(step)
    plain = walked(write_report(made.path))
    assert "Age of the turns" not in plain["sections"]["time"]
    rows = read_lines(made.path / "metrics.jsonl")
    (made.path / "metrics.jsonl").unlink()
    for number, row in enumerate(rows):
        ages = {f"off_policy/turns_by_age/{age}": 10.0 * (age + number) for age in range(2 + number % 2)}
        append_line(made.path / "metrics.jsonl", row | ages)
    drawn = walked(write_report(made.path))
    text = drawn["sections"]["time"]
    assert "Age of the turns that a step trained on" in text and "2 steps old" in text and drawn["bare"] == []
