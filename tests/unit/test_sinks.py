"""Sinks: wandb's part of a run, in the background so that nothing it does can stop the run."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.metrics import MetricsLog
from harbortrainer.watch import wandb_log
from harbortrainer.watch.wandb_log import (
    COLUMNS,
    EVALUATION,
    MOST_ROWS,
    TRAINING,
    BackgroundSink,
    SinkLimits,
    WandbLog,
    sampled_tables,
    start_wandb,
)

LONG = SinkLimits(start=60, finish=60)


class FakeRun:
    """A wandb run on the other side of `WandbLog`."""

    url, dir = "https://wandb", "/"

    def __init__(self, starting_step: int = 0, *, offline: bool = False, id: str = "r") -> None:
        self.starting_step, self.offline, self.id = starting_step, offline, id
        self.calls: list[object] = []

    def log(self, data: dict[str, Any], step: int, commit: bool) -> None:
        assert data["global_step"] == step and commit, "without commit wandb keeps a row until the next one"
        self.calls.append(step)

    def finish(self, exit_code: int | None = None) -> None:
        self.calls.append("finish")


class Sink:
    """Does what it is told; notes what it gets."""

    about = "somewhere"

    def __init__(self, *, fails: BaseException | None = None, waits: threading.Event | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.ended: list[int | None] = []
        self._fails, self._waits = fails, waits

    def log(self, row: dict[str, Any]) -> None:
        if self._waits is not None:
            self._waits.wait()
        if self._fails is not None:
            raise self._fails
        self.rows.append(row)

    def finish(self, exit_code: int | None = None) -> None:
        self.ended.append(exit_code)


@pytest.mark.parametrize("had", [-1, 0, 2])
def test_a_resumed_run_sends_what_the_server_lacks(tmp_path: Path, had: int) -> None:
    """-1: wandb_project is new to the run."""
    run, fake = RunDirectory(tmp_path), FakeRun(had + 1)
    log = MetricsLog(run)
    for step in range(3):
        log.log(step, {})
    MetricsLog(run, WandbLog(run, fake)).log(3, {})
    assert fake.calls == list(range(had + 1, 4))


def test_offline_a_row_that_wandb_may_hold_back_is_not_noted(tmp_path: Path) -> None:
    run = offline_run(tmp_path)
    log = MetricsLog(run, WandbLog(run, FakeRun(offline=True)))
    for step in range(3):
        log.log(step, {})
    MetricsLog(run, WandbLog(run, fake := FakeRun(offline=True))).log(3, {})
    assert fake.calls == [0, 1, 2, 3]


def test_a_note_of_another_wandb_run_does_not_count(tmp_path: Path) -> None:
    run = offline_run(tmp_path)
    log = MetricsLog(run, WandbLog(run, FakeRun(offline=True)))
    log.log(0, {})
    log.close()
    MetricsLog(run, WandbLog(run, other := FakeRun(offline=True, id="other")))
    assert other.calls == [0]


def offline_run(path: Path) -> RunDirectory:
    """With the folder that wandb makes."""
    (path / "wandb").mkdir()
    return RunDirectory(path)


@pytest.mark.parametrize("error", [SystemExit(1), RuntimeError(), ImportError("No module named 'wandb'")])
def test_a_sink_that_cannot_be_opened_is_told_at_the_start(error: BaseException) -> None:
    def opening() -> Sink:
        raise error

    said: list[str] = []
    background = BackgroundSink("w", opening, said.append, LONG)
    assert len(said) == 1 and type(error).__name__ in said[0]
    background.log({"global_step": 0})
    background.finish()
    assert len(said) == 1


def test_a_sink_that_wakes_up_late_gets_every_row() -> None:
    gate, said = threading.Event(), []
    sink = Sink(waits=gate)
    background = BackgroundSink("w", lambda: sink, said.append, LONG)
    for step in range(5):
        background.log({"global_step": step})
    gate.set()
    background.finish(0)
    assert [row["global_step"] for row in sink.rows] == list(range(5)) and sink.ended == [0]


def conversation(task: str, reward: float | None, words: str = "ls") -> dict[str, Any]:
    messages = [{"role": "user", "content": "do it"}, {"role": "assistant", "content": words}]
    return {"task": task, "trial": f"t-{task}", "reward": reward, "outcome": "completed", "messages": messages}


def keep(run: RunDirectory, batch: str, records: list[dict[str, Any]]) -> None:
    (run.path / "conversations").mkdir(exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    (run.path / "conversations" / f"{batch}.jsonl").write_text(text)


def test_tables_hold_a_few_conversations_of_the_rows_own_batches(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    keep(run, "step_000001", [conversation(f"task-{i}", i % 2) for i in range(100)])
    keep(run, "eval_000002", [conversation("held-out", None, "x" * 50_000)])
    tables = sampled_tables(run, {"global_step": 2, "group/count": 2.0, "eval/tasks": 0.0})
    assert [len(rows) for rows in tables.values()] == [MOST_ROWS, 1]
    assert len({row[1] for row in tables[TRAINING]}) == MOST_ROWS, "spread over the tasks"
    shown = dict(zip(COLUMNS, tables[EVALUATION][0], strict=True))
    assert shown["global_step"] == 2 and shown["turns"] == 1 and shown["reward"] is None
    assert len(shown["conversation"]) < 6100 and "characters left out" in shown["conversation"]
    assert sampled_tables(run, {"global_step": 1, "group/count": 2.0}) == {}, "nothing is kept of that step"
    assert sampled_tables(run, {"global_step": 2}) == {}, "the row has no batch"


def test_a_conversation_that_is_too_large_is_left_out(tmp_path: Path) -> None:
    large = conversation("a", 1, "x" * wandb_log.MOST_LINE)
    keep(RunDirectory(tmp_path), "step_000000", [large, conversation("b", 0)])
    tables = sampled_tables(RunDirectory(tmp_path), {"global_step": 1, "group/count": 2.0})
    assert [row[1] for row in tables[TRAINING]] == ["b"]


def test_disabled_is_said_and_without_a_project_there_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    assert start_wandb(RunDirectory(tmp_path), None, None, {}, said.append) is None and not said
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert start_wandb(RunDirectory(tmp_path), "p", None, {}, said.append) is None
    assert said == ["wandb: off (WANDB_MODE=disabled)"]
