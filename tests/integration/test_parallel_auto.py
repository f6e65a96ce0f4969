"""`n_parallel_envs=auto` with a real server and containers: it moves within its bound, and a resume continues it."""

import logging
from pathlib import Path

import pytest

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.rollout import concurrency, level
from harbortrainer.rollout.level import FIRST, Why
from harbortrainer.run.directory import RunDirectory
from harbortrainer.train import parse
from harbortrainer.training.session import run_training
from tests.support.command_runs import SMALL, TASKS, containers
from tests.support.small_server import MODEL

ONE = [word for word in SMALL if not word.startswith(("n_parallel_envs", "eval_tasks", "batch_size", "max_turns"))]


@pytest.mark.nightly
async def test_it_moves_within_its_bound_and_a_resume_continues_it(
    server_url: str,
    docker_ready: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Windows of a few turns, so that a short run has several; every try of more pays."""
    monkeypatch.setattr(level, "WORTH", -10.0)
    for name, value in (("SLICES", 1), ("SLOWEST", 0), ("LEAST_TURNS", 2), ("TURNS_PER_AGENT", 0), ("TAKEN", 0.3)):
        monkeypatch.setattr(concurrency, name, value)
    words = [
        "backend=skyrl-tx", f"skyrl_tx_url={server_url}", f"model_name={MODEL}", f"tasks_dir={TASKS}", *ONE,
        f"logs_dir={tmp_path}", "run_name=run", "n_parallel_envs=auto", "batch_size=3", "max_turns=2",
        "max_steps=2", "context_limit=4096", "max_steps_off_policy=2",
        "environment_kwargs.override_cpus=0.5",
    ]  # fmt: skip
    with caplog.at_level(logging.INFO, "harbortrainer"):
        assert await run_training(parse(words)) == 0
    run = RunDirectory(tmp_path / "run")
    rows = read_lines(run.metrics)
    last = rows[-1]
    assert last["rollout/parallel_changes"] >= 1 and 0 < last["rollout/parallel_why"] < len(Why)
    assert last["rollout/parallel_tokens_per_second"] > 0
    assert all(1 <= row["rollout/parallel_limit"] <= row["rollout/parallel_most"] for row in rows)
    assert "n_parallel_envs=auto: " in caplog.text
    assert containers(run.path) == []

    monkeypatch.setattr(concurrency, "LEAST_TURNS", 10**6)  # no more changes
    assert await run_training(parse([f"resume={run.path}", "max_steps=3"])) == 0
    continued = read_lines(run.metrics)[-1]
    assert continued["rollout/parallel_changes"] == 0
    assert continued["rollout/parallel_limit"] == last["rollout/parallel_limit"] != FIRST
