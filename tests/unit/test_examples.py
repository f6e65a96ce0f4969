"""The examples do what their first lines say; examples/loop.py with the fakes of whole runs."""

from pathlib import Path

import chz
import pytest

from examples.loop import datums, loop
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import group_trajectories
from tests.conftest import ROOT
from tests.support.recorded_run import Recorder, fake_outside
from tests.unit.test_brought import trial
from tests.unit.test_every_setting import copy_tasks


def config(folder: Path) -> Config:
    tasks = copy_tasks(folder / "tasks", ("count-1", "create-1", "copy-1"))
    return Config(
        backend="skyrl-tx", skyrl_tx_url="http://here:1", model_name="models/one", tasks_dir=tasks, max_steps=3,
        logs_dir=str(folder), batch_size=2, group_size=4, eval_tasks=("copy-1",), allow_family_overlap=True,
    )  # fmt: skip


async def test_the_loop_samples_updates_publishes_and_evaluates(tmp_path: Path) -> None:
    recorder = Recorder()
    rewards = await loop(config(tmp_path), fake_outside(recorder))
    assert rewards == pytest.approx([4.25 / 7, 5.25 / 8, 5.25 / 8])  # a trial of the first step gets no grade
    kinds = [len(recorder.kinds(kind)) for kind in ("forward_backward", "optim_step", "save_state")]
    assert kinds == [3, 3, 1]
    trials = [event["config"]["trial_name"] for event in recorder.kinds("trial")]
    assert sum(name.startswith("e") for name in trials) == 2
    first, *_ = (sum(map(abs, datum["advantages"])) for datum in recorder.kinds("datum"))
    assert 0 < first < 1  # a share of the mean over all sampled tokens


def test_the_loops_advantages_are_those_of_grpo() -> None:
    (one, *_), *others = [datums(group_trajectories("task", [trial(0, 1.0), trial(1, 0.0)])), []]
    assert set(one.advantages_T[one.mask_T]) == {1.0} and others == [[]]
    assert datums(group_trajectories("task", [trial(0, 1.0), trial(1, 1.0)])) == []


async def test_the_loop_refuses_what_a_run_refuses(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="eval_tasks: no task named 'nowhere'"):
        await loop(chz.replace(config(tmp_path), eval_tasks=("nowhere",)), fake_outside(Recorder()))


def test_each_example_is_short() -> None:
    lines = {file.name: len(file.read_text().splitlines()) for file in (ROOT / "examples").glob("*.py")}
    assert lines.pop("loop.py") <= 300 and max(lines.values()) <= 100
