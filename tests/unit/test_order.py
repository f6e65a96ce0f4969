from pathlib import Path
from typing import Any

import pytest

from harbortrainer.errors import UserError
from harbortrainer.tasks.order import TaskOrder
from harbortrainer.tasks.task import Task

TASKS = [Task(name=f"t{i}", ref=Path(f"t{i}"), digest=str(i)) for i in range(5)]


def order(**changes: int | None) -> TaskOrder:
    settings: dict[str, Any] = {"batch_size": 2, "n_epochs": 2, "max_steps": 0, "seed": 1} | changes
    return TaskOrder(TASKS, **settings)


def names(step: int, **changes) -> list[str]:
    return [task.name for task in order(**changes).batch(step)]


def test_each_epoch_takes_every_task_once():
    stream = [name for step in range(order().total_steps) for name in names(step)]
    assert order().total_steps == 5
    assert sorted(stream[:5]) == sorted(stream[5:]) == [t.name for t in TASKS]
    assert stream[:5] != stream[5:]


def test_a_batch_depends_on_seed_and_step_only():
    assert names(3) == names(3)
    assert [names(s) for s in range(5)] != [names(s, seed=2) for s in range(5)]


def test_last_batch_is_smaller_when_tasks_do_not_divide():
    assert order(n_epochs=1).total_steps == 3
    assert len(names(2, n_epochs=1)) == 1


def test_max_steps_cuts_the_run():
    assert order(max_steps=2).total_steps == 2
    assert order(max_steps=99).total_steps == 5


def test_epoch_ends():
    assert [order().ends_epoch(step) for step in range(5)] == [False, False, True, False, True]


def test_weights_say_how_often_an_epoch_takes_the_tasks_of_a_source():
    tasks = [Task(f"{source}{i}", Path("x"), "", source=source) for source in "abc" for i in range(4)]
    weights = {"a": 2.0, "b": 0.5}
    order = TaskOrder(tasks, batch_size=7, n_epochs=2, max_steps=0, seed=1, weights=weights)
    assert order.total_steps == 4
    stream = [task.name for step in range(order.total_steps) for task in order.batch(step)]
    first, second = stream[:14], stream[14:]
    for epoch in (first, second):
        assert [epoch.count(f"a{i}") for i in range(4)] == [2] * 4
        assert [epoch.count(f"c{i}") for i in range(4)] == [1] * 4
        assert sum(name.startswith("b") for name in epoch) == 2
    assert {name for name in first if name[0] == "b"} != {name for name in second if name[0] == "b"}


def test_weights_that_leave_nothing_are_refused():
    with pytest.raises(UserError, match="task_weights"):
        TaskOrder(TASKS, batch_size=2, n_epochs=1, max_steps=0, seed=1, weights={"": 0.01})


def test_max_steps_alone_decides_how_many_passes_are_made() -> None:
    long = order(n_epochs=None, max_steps=7)
    assert long.total_steps == 7 and [len(long.batch(step)) for step in range(7)] == [2] * 7
    assert [task.name for step in range(5) for task in long.batch(step)] == [
        name for step in range(5) for name in names(step)
    ]
    assert order(n_epochs=None).total_steps == 3, "one pass where neither is given"
