"""`tasks measure` and `difficulty=FILE`: what is written, which tasks are trained on, what a resume and a page see."""

import json
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.cli.main import run_command
from harbortrainer.config import Config
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.evaluation.arguments import parse_measure
from harbortrainer.evaluation.measure import measure
from harbortrainer.report.run import read_run
from harbortrainer.stats import estimate_mean
from harbortrainer.tasks.difficulty import FILE, read_measured
from harbortrainer.training.plan import make_plan, start_directory
from tests.support.evaluations import TASKS, KnowsAll, copy_tasks
from tests.support.measured import write_measured
from tests.support.recorded_run import Recorder, fake_outside, recorded_run
from tests.support.small_settings import BASE


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    return copy_tasks(tmp_path / "tasks", *TASKS)


@pytest.fixture
def measured(tasks: Path, tmp_path: Path) -> str:
    """count-1 is too hard, create-2 too easy; create-1 has no grade."""
    rewards = dict(zip((tasks / name for name in TASKS), (0.0, 0.5, None, 1.0), strict=True))
    return write_measured(tmp_path / "measured.json", rewards)


def config(tasks: Path, **more: Any) -> Config:
    return Config(model_name="models/one", tasks_dir=str(tasks), logs_dir=str(tasks.parent / "logs"), **more)


def measuring(tasks: Path, out: Path, *more: str) -> int:
    words = [str(tasks), f"out={out}", "model_name=models/one", "backend=skyrl-tx", "skyrl_tx_url=http://here:1"]
    recorder = Recorder()
    outside = fake_outside(recorder, KnowsAll(recorder))
    return run_command(lambda: measure(parse_measure([*words, *more]), outside))


def test_a_measurement_is_an_evaluation_with_eight_trials_a_task(tasks: Path, tmp_path: Path) -> None:
    assert measuring(tasks, tmp_path / "hard.json") == 0
    value = json.loads((tmp_path / "hard.json").read_text())
    (policy,) = json.loads((tmp_path / "hard" / "evaluation.json").read_text())["policies"]
    assert list(value["tasks"]) == list(TASKS) and (value["trials"], value["policy"]) == (8, "base")
    for result in policy["per_task"]:
        one = value["tasks"][result["name"]]
        assert one["rewards"] == result["rewards"] and len(one["rewards"]) == 8
        assert one["reward"] == result["mean"]
        interval = estimate_mean([float(reward >= 1) for reward in one["rewards"]])
        assert (one["pass_rate"], one["low"]) == (pytest.approx(interval.mean), pytest.approx(interval.low, abs=1e-4))
        assert 0 <= one["low"] <= one["pass_rate"] <= one["high"] <= 1
        assert one["turns"] >= 1 and one["tokens"] >= one["sampled_tokens"] > 0 and one["seconds"] >= 0
    before = (tmp_path / "hard.json").read_bytes()
    assert measuring(tasks, tmp_path / "hard.json") == 0, "the same command continues it"
    assert (tmp_path / "hard.json").read_bytes() == before
    assert read_measured(tmp_path / "hard.json").keys() == {one["digest"] for one in value["tasks"].values()}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["t"], "out=None: give the file to write, out=FILE.json"),
        (["t", "out=folder"], "out=folder: give the file to write"),
        (
            ["t", "out=f.json", "model_name=m", "against=base", "checkpoint=oracle"],
            "against=base: difficulty is",
        ),
    ],
)
def test_mistakes_of_a_measurement_are_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_measure(words)


def test_training_tasks_outside_the_band_are_left_out_and_held_out_tasks_stay(tasks: Path, measured: str) -> None:
    plan = make_plan(config(tasks, difficulty=measured, eval_tasks=("create-2",), allow_family_overlap=True))
    assert [task.name for task in plan.train] == ["count-2", "create-1"]
    assert [(task.name, task.difficulty) for task in plan.held_out] == [("create-2", "0.75-1.00")]
    assert plan.length_note[0] == (
        "difficulty: 1 of 3 training tasks are from 0.1 to 0.9 (1 below, 0 above); 1 were not measured, or have "
        "changed since, and stay"
    )
    wide = make_plan(config(tasks, difficulty=f"{measured}@0,1"))
    assert [task.name for task in wide.train] == list(TASKS)


def test_a_resumed_run_reads_its_own_copy(tasks: Path, measured: str) -> None:
    plan = make_plan(config(tasks, difficulty=measured))
    run = start_directory(plan)
    run.ledger.write_text("")
    assert json.loads((run.path / FILE).read_text()) == json.loads(Path(measured).read_text())
    Path(measured).unlink()
    again = make_plan(config(tasks, difficulty=measured, resume=str(run.path)))
    assert [task.name for task in again.train] == [task.name for task in plan.train] == ["count-2", "create-1"]


def test_mistakes_about_the_file_and_the_band_are_one_line(tasks: Path, measured: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"difficulty=nowhere.json: cannot be read \(No such file"):
        make_plan(config(tasks, difficulty="nowhere.json"))
    (tmp_path / "other.json").write_text('{"tasks": [1]}')
    with pytest.raises(UserError, match=r"other.json: not written by tasks measure"):
        make_plan(config(tasks, difficulty=str(tmp_path / "other.json")))
    every = write_measured(tmp_path / "every.json", dict.fromkeys((tasks / name for name in TASKS), 1.0))
    with pytest.raises(UserError, match=r"difficulty: no training task is from 0.1 to 0.9 \(0 below, 4 above\); give"):
        make_plan(config(tasks, difficulty=every))
    with pytest.raises(UserError, match=r"difficulty=\S+@0.8,0.2: give two mean rewards from 0 to 1"):
        make_plan(config(tasks, difficulty=f"{measured}@0.8,0.2"))


async def test_a_run_has_rewards_by_measured_difficulty_and_its_page_shows_them(
    tasks: Path, measured: str, tmp_path: Path
) -> None:
    more = (f"tasks_dir={tasks}", f"logs_dir={tmp_path}", f"difficulty={measured}@0,1", "batch_size=4")
    arguments = dict(word.split("=", 1) for word in (*BASE, *more))
    await recorded_run([f"{name}={value}" for name, value in arguments.items()])
    (row,) = read_lines(tmp_path / "run" / "metrics.jsonl")
    parts = {name.rpartition("/")[2] for name in row if name.startswith("reward/mean/difficulty/")}
    assert parts == {"0.00-0.25", "0.50-0.75", "0.75-1.00", "not-measured"}
    shown = read_run(tmp_path / "run").shown["metrics"]["values"]
    assert shown["reward/mean/difficulty/0.50-0.75"] == [row["reward/mean/difficulty/0.50-0.75"]]
