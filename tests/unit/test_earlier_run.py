"""A run of an earlier version goes on: `earlier_run.tar.xz` is a folder that `recorded_run` left at commit b3e89d4e.

Two of its steps were done, with settings that have other names now or none: `clip_low_threshold`, `advantage_baseline`,
`quarantine_after`, `n_parallel_envs=auto`.
"""

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from harbortrainer.config import Config
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.config_changes import ConfigHistory
from harbortrainer.run.directory import RunDirectory
from tests.conftest import ROOT
from tests.support.recorded_run import recorded_run
from tests.support.resumed import TASKS, of


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run, in the folder that it was started from."""
    with tarfile.open(ROOT / "tests/support/earlier_run.tar.xz") as packed:
        packed.extractall(tmp_path / "logs", filter="data")
    for name in TASKS:
        shutil.copytree(ROOT / "datasets/quickstart" / name, tmp_path / "tasks" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "logs" / "run"


def test_its_settings_have_the_names_of_today(earlier: Path) -> None:
    history = ConfigHistory(RunDirectory(earlier), Config)
    [(step, config)] = history.configs()
    assert (step, config.loss_fn, config.clip_thresholds, config.advantage) == (0, "ppo", (0.85, 1.2), "leave_one_out")
    assert config.n_parallel_envs == 8
    (line,) = history.removed
    assert "quarantine_after=5" in line and "n_parallel_envs=auto" in line and "clip_low_threshold" not in line


async def test_it_goes_on_where_it_stopped(earlier: Path) -> None:
    before = read_lines(earlier / "metrics.jsonl")
    events = [json.loads(event) for event in await recorded_run(["resume=logs/run", "max_steps=3"])]
    assert of("refused", events) == []
    assert [event["step"] for event in of("restore", events)] == [2]
    rows = read_lines(earlier / "metrics.jsonl")
    assert rows[: len(before)] == before, "what was written stays"
    assert [row["global_step"] for row in rows] == [0, 1, 2, 3]
    assert len(of("trial", events)) == 5, "a batch of 2 x 2 and the evaluation after it"
    assert rows[-1]["funnel/trained"] == before[-1]["funnel/trained"] + 4
