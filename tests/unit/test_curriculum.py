"""Curricula: what rests, for how long, that nothing is forgotten; a killed run goes on with the same tasks."""

import asyncio
import random
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.config import Config
from harbortrainer.durable.jsonl import append_line
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup, Turn, group_trajectories
from harbortrainer.tasks.curriculum import ENOUGH, FILE, LONGEST_REST, Curriculum, TaskHistory, open_curriculum
from harbortrainer.tasks.order import TaskOrder
from harbortrainer.tasks.task import Task
from harbortrainer.training.schedule import SettingsByStep
from tests.unit.test_trainer import Run

BAND = (0.1, 0.9)
CHANCE = {f"{kind}{i}": p for kind, p in (("never", 0.0), ("often", 0.5), ("always", 1.0)) for i in range(10)}
TASKS = [Task(name, Path(name), f"digest of {name}") for name in CHANCE]
CONFIG = Config(model_name="models/m", tasks_dir="d", curriculum_band=BAND)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def order(n_epochs: int = 20, batch_size: int = 6) -> TaskOrder:
    return TaskOrder(TASKS, batch_size=batch_size, n_epochs=n_epochs, max_steps=0, seed=3)


def opened(folder: Path) -> Curriculum:
    found = open_curriculum(CONFIG, folder, TASKS)
    assert found is not None
    return found


def trials(task: Task, step: int, size: int = 8) -> TrajectoryGroup:
    """By a policy that is the same whenever the step is made."""
    chance = random.Random(f"{task.name} {step}")
    turn = Turn(0, (1,), (2,), (-0.5,), 0)
    rewards = [float(chance.random() < CHANCE[task.name]) for _ in range(size)]
    made = [Trajectory(task.name, f"{g}", (turn,), reward, Outcome.COMPLETED) for g, reward in enumerate(rewards)]
    return group_trajectories(task.name, made)


def go_through(folder: Path, first: int, last: int, size: int = 8) -> list[list[str]]:
    curriculum, taken = opened(folder), []
    for step in range(first, last):
        tasks = curriculum.batch(step, order())
        curriculum.measured(step, [trials(task, step, size) for task in tasks])
        taken.append([task.name for task in tasks])
    return taken


def joined(batches: Iterable[list[str]]) -> list[str]:
    return list(chain.from_iterable(batches))


def test_without_a_band_the_order_is_the_plain_one(folder):
    config = Config(model_name="m", tasks_dir="d", batch_size=4, n_epochs=2, seed=5)
    assert open_curriculum(config, folder, TASKS) is None
    schedule = SettingsByStep(TASKS, [(0, config)])
    plain = TaskOrder(TASKS, batch_size=4, n_epochs=2, max_steps=0, seed=5)
    assert [schedule.batch(step) for step in range(15)] == [plain.batch(step) for step in range(15)]
    assert schedule.measured(0, []) == {} and not list(folder.iterdir())


def test_the_first_pass_takes_every_task_in_the_plain_order(folder):
    assert joined(go_through(folder, 0, 5)) == [task.name for step in range(5) for task in order().batch(step)]


def test_tasks_outside_the_band_are_taken_seldom_and_never_forgotten(folder):
    taken = go_through(folder, 0, 100)
    late = joined(taken[40:])
    often = sum(name.startswith("often") for name in late) / len(late)
    assert often > 0.7, "of 30 tasks 10 are in the band: a third without a curriculum"
    assert {name for name in late if not name.startswith("often")} == {n for n in CHANCE if not n.startswith("often")}
    assert all(len(batch) == len(set(batch)) == 6 for batch in taken)


def test_a_task_that_comes_into_the_band_is_taken_as_often_as_others(folder):
    history = TaskHistory(BAND)
    rests = []
    for _ in range(5):
        history.measure((0.0, 8))
        rests.append(history.rest)
    assert rests == [3, 7, LONGEST_REST, LONGEST_REST, LONGEST_REST]
    history.measure((2.0, 8))
    assert (history.mean, history.rest) == (0.25, 0), "what the policy did before is no matter"


def test_few_trials_are_no_evidence_and_ungraded_ones_are_none():
    history = TaskHistory(BAND)
    history.measure((0.0, ENOUGH - 1))
    assert history.mean is None and history.rest == 0
    history.measure((0.0, 0))
    assert len(history.groups) == 1
    history.measure((0.0, 1))
    assert history.mean == 0.0 and history.rest == 3


def test_where_all_rest_batches_are_full_and_the_longest_rest_comes_first(folder, monkeypatch):
    monkeypatch.setitem(globals(), "CHANCE", dict.fromkeys(CHANCE, 0.0))
    taken = go_through(folder, 0, 40)
    assert all(len(set(batch)) == 6 for batch in taken)
    assert all(set(joined(taken[i : i + 20])) == set(CHANCE) for i in range(20)), "each within some batches"


def test_more_places_than_tasks_are_filled_by_taking_tasks_again(folder):
    few = TASKS[:3]
    curriculum = Curriculum(BAND, few, folder)
    plain = TaskOrder(few, batch_size=8, n_epochs=20, max_steps=0, seed=1)
    assert [len(curriculum.batch(0, plain)), {t.name for t in curriculum.batch(0, plain)}] == [8, {t.name for t in few}]


@pytest.mark.parametrize("torn", [0, 1, 30])
def test_a_run_killed_after_any_line_goes_on_with_the_same_tasks(folder, tmp_path, torn):
    whole = go_through(folder, 0, 40)
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    for kept in range(1, len(lines), 7):
        again = tmp_path / f"killed-{kept}"
        again.mkdir()
        (again / FILE).write_bytes(b"".join(lines[:kept]) + lines[kept][:torn])
        steps = sum(b'"measured"' in line for line in lines[:kept])
        back = max(0, steps - 3)  # the state that is restored may be older
        assert go_through(again, back, 40) == whole[back:], f"{kept} lines were there"
        assert (again / FILE).read_bytes() == (folder / FILE).read_bytes()


def test_a_damaged_line_is_named(folder):
    go_through(folder, 0, 3)
    text = (folder / FILE).read_text()
    (folder / FILE).write_text(text.replace('"position": 6', '"position": 7', 1))
    with pytest.raises(UserError, match="line 1"):
        opened(folder)


def test_the_tasks_of_a_run_depend_on_no_other_run(folder, tmp_path):
    go_through(folder, 0, 40)
    (tmp_path / "later").mkdir()
    assert opened(tmp_path / "later").summary.endswith("0 outside, which rest, 30 not measured yet")
    assert joined(go_through(tmp_path / "later", 0, 5)) == [t.name for step in range(5) for t in order().batch(step)]


def test_a_run_that_began_with_rewards_of_other_runs_keeps_them(folder):
    append_line(folder / FILE, {"event": "start", "rewards": {"never1": (0.0, 8)}}, checked=True)
    assert opened(folder).summary == "curriculum: 0 tasks in the band, 1 outside, which rest, 29 not measured yet"


def test_metrics_count_the_training_tasks(folder):
    curriculum = opened(folder)
    for step in range(5):
        curriculum.measured(step, [trials(task, step) for task in curriculum.batch(step, order())])
    found = curriculum.metrics(4)
    assert found["curriculum/tasks_unmeasured"] == 0 and found["curriculum/groups_outside"] == 0
    assert found["curriculum/tasks_outside"] >= 20 and sum(list(found.values())[:3]) == 30
    curriculum.batch(5, order())
    assert curriculum.metrics(5)["curriculum/groups_outside"] == 0
    assert curriculum.summary.startswith(f"curriculum: {found['curriculum/tasks_in_band']:.0f} tasks in the band")


async def test_a_resumed_run_trains_the_same_batches(tmp_path):
    def made(folder: Path, **settings: Any) -> Run:
        run = Run(folder, held_out=0, n_epochs=6, group_size=8, **settings)  # 1 trial of 8 is solved: outside
        tasks = run.trainer.schedule.train
        curriculum = Curriculum((0.2, 0.9), tasks, folder)
        run.trainer.schedule = SettingsByStep(tasks, [(0, run.config)], curriculum)
        return run

    for name in "ab":
        (tmp_path / name).mkdir()
    whole = made(tmp_path / "a")
    await whole.trainer.run()
    killed = made(tmp_path / "b", rollouts={"stop": "s000006-p01-g03"})
    with pytest.raises(asyncio.CancelledError):
        await killed.trainer.run()
    resumed = made(tmp_path / "b", start_step=6)
    await resumed.trainer.run()
    assert resumed.rollouts.tasks == whole.rollouts.tasks[6:]
    assert resumed.policy.batches == whole.policy.batches[6:]
    for name in ("reward/mean", "curriculum/tasks_outside", "curriculum/groups_outside"):
        assert [row[name] for row in resumed.rows] == [row[name] for row in whole.rows]
    assert whole.rows[-1]["curriculum/tasks_outside"] == 4
