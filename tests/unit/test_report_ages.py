"""The age of what each step trained on, and the last number of agents, in the report."""

from pathlib import Path

from harbortrainer.durable.jsonl import append_line, read_lines
from harbortrainer.report.run import at_once
from harbortrainer.report.write import write_report
from harbortrainer.rollout.level import Why
from tests.support.made_run import MadeRun
from tests.support.report_walk import Walk


def test_the_last_number_of_agents_is_named_with_its_reason() -> None:
    rows = [{"rollout/parallel_limit": 8.0, "rollout/parallel_why": 0.0}]
    rows += [{"rollout/parallel_limit": 32.0, "rollout/parallel_why": float(Why.LATENCY)}, {"eval/tasks": 1.0}]
    assert at_once(rows) == {"agents": 32, "why": Why.LATENCY.words}
    assert at_once([{"time/step": 1.0}]) == {}


def test_the_page_draws_ages_and_agents(tmp_path: Path, walked: Walk) -> None:
    made = MadeRun(tmp_path / "run", tasks=2, group=4, turns=2)
    for step in range(3):
        made.train(step)
    plain = walked(write_report(made.path))
    assert "Age of the turns" not in plain["sections"]["time"]
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
