"""Training and held-out tasks: no family on both sides, a function of the seed, written down and held to."""

import json
import shutil
from pathlib import Path

import pytest

from harbortrainer.errors import UserError
from harbortrainer.tasks.folders import digest
from harbortrainer.tasks.split import SPLIT_FILE, check_held_out, check_split, split_record, split_tasks
from harbortrainer.tasks.task import Task
from tests.support.task_folder import write_task

ACTIONS = ("Sort", "Reverse", "Count", "Encrypt", "Compress", "Rename", "Merge", "Delete", "Print", "Move")


def tasks_named(folder: Path, *names: str) -> list[Task]:
    """Each of a family of its own, which the letters before a number in its name stand for."""
    tasks = []
    for name in names:
        family, _, number = name.partition("-")
        action = ACTIONS[(ord(family[0]) - ord("a")) % len(ACTIONS)]
        files = {
            "instruction.md": f"{action} the lines of file{number or 0}.txt with the {family} tool.\n",
            "tests/test.sh": f"{family} file{number}.txt\n",
        }
        path = write_task(folder / name, files=files)
        tasks.append(Task(name, path, digest(path)))
    return tasks


def names(tasks: list[Task]) -> list[str]:
    return [task.name for task in tasks]


def test_by_share_it_is_seeded_and_keeps_some_of_each(tmp_path: Path) -> None:
    tasks = tasks_named(tmp_path, *"abcdefghij")
    train, held_out = split_tasks(tasks, 0.3, (), seed=1)
    assert len(held_out) == 3 and names(train) + names(held_out) != names(tasks)
    assert sorted(names(train) + names(held_out)) == names(tasks)
    assert split_tasks(tasks, 0.3, (), seed=1) == (train, held_out)
    assert any(split_tasks(tasks, 0.3, (), seed=s)[1] != held_out for s in range(2, 6))
    assert split_tasks(tasks, 0.0, (), seed=1) == (tasks, [])
    assert len(split_tasks(tasks, 0.01, (), seed=1)[1]) == 1
    assert len(split_tasks(tasks, 0.99, (), seed=1)[0]) == 1


def test_by_share_families_stay_together(tmp_path: Path) -> None:
    tasks = tasks_named(tmp_path, *(f"{family}-{number}" for family in "abcde" for number in range(4)))
    for seed in range(5):
        train, held_out = split_tasks(tasks, 0.25, (), seed=seed)
        assert len(held_out) == 4 and len({name[0] for name in names(held_out)}) == 1
        assert not {name[0] for name in names(train)} & {name[0] for name in names(held_out)}
    drawn = {tuple(names(split_tasks(tasks, 0.25, (), seed=s, allow_family_overlap=True)[1])) for s in range(5)}
    assert any(len({name[0] for name in held}) > 1 for held in drawn)


def test_one_family_cannot_be_divided_by_share(tmp_path: Path) -> None:
    tasks = tasks_named(tmp_path, "a-1", "a-2", "a-3")
    with pytest.raises(UserError, match=r"eval_split=0\.5: all 3 tasks are of one family .*allow_family_overlap=true"):
        split_tasks(tasks, 0.5, (), seed=1)


def test_by_name_it_ignores_the_share(tmp_path: Path) -> None:
    train, held_out = split_tasks(tasks_named(tmp_path, "a", "b", "c"), 0.9, ("c", "a"), seed=1)
    assert (names(train), names(held_out)) == (["b"], ["a", "c"])


def test_named_tasks_of_a_trained_family_are_refused_with_the_pair(tmp_path: Path) -> None:
    tasks = tasks_named(tmp_path, "a-1", "a-2", "b-1")
    with pytest.raises(UserError, match=r"a-2 \(held out\) and a-1 \(training\) have the same instruction template"):
        split_tasks(tasks, 0, ("a-2",), seed=1)
    assert names(split_tasks(tasks, 0, ("a-2",), seed=1, allow_family_overlap=True)[1]) == ["a-2"]


def test_the_same_task_is_on_one_side_whatever_is_allowed(tmp_path: Path) -> None:
    tasks = tasks_named(tmp_path, "a", "b")
    copied = tmp_path / "other"
    shutil.copytree(tasks[0].ref, copied)
    tasks.append(Task("other", copied, digest(copied)))
    with pytest.raises(UserError, match=r"other \(held out\) and a \(training\) have the same files"):
        split_tasks(tasks, 0, ("other",), seed=1, allow_family_overlap=True)
    for seed in range(5):
        assert names(split_tasks(tasks, 0.3, (), seed=seed, allow_family_overlap=True)[0]) in (["b"], ["a", "other"])


def test_errors_name_the_field(tmp_path: Path) -> None:
    tasks = tasks_named(tmp_path, "edit-file", "zzz")
    with pytest.raises(UserError, match="eval_tasks: no task named 'edit-fil'; near: edit-file"):
        split_tasks(tasks, 0, ("edit-fil",), seed=1)
    with pytest.raises(UserError, match="eval_tasks: all 2 tasks are held out"):
        split_tasks(tasks, 0, ("edit-file", "zzz"), seed=1)
    with pytest.raises(UserError, match=r"eval_split=0\.5: all 1 tasks are held out"):
        split_tasks(tasks[:1], 0.5, (), seed=1)


def test_a_resumed_run_has_its_tasks_on_the_same_sides(tmp_path: Path) -> None:
    a, b, c = tasks_named(tmp_path, "a", "b", "c")
    check_split(tmp_path, [a], [c])  # a run of an earlier version has no record
    (tmp_path / SPLIT_FILE).write_text(json.dumps(split_record([a, b], [c], False)))
    check_split(tmp_path, [a, b], [c])
    for train, held_out, told in (
        ([a], [b, c], "b is held out now, and was not; b was trained on, and is not now"),
        ([a, b], [], "c was held out, and is not now"),
        ([a, Task("b", b.ref, "0")], [c], "b has changed"),
    ):
        with pytest.raises(UserError, match=f"resume={tmp_path}: .*{told}"):
            check_split(tmp_path, train, held_out)


@pytest.mark.parametrize("allow", [False, True])
def test_a_run_is_not_evaluated_on_what_it_was_trained_on(tmp_path: Path, allow: bool) -> None:
    """`allow`: the run's own allow_family_overlap, whose split is another one."""
    a, a_2, b, c = tasks_named(tmp_path, "a-1", "a-2", "b-1", "c-1")
    record = json.loads(json.dumps(split_record([a, b], [], allow)))
    check_held_out(record, [c], "runs/x")
    with pytest.raises(UserError, match=r"evaluation of runs/x: a-2 \(held out\) and a-1 \(training\)"):
        check_held_out(record, [c, a_2], "runs/x")
    check_held_out(record, [c, a_2], "runs/x", allow_family_overlap=True)
    with pytest.raises(UserError, match=r"b-1 .*the same files"):
        check_held_out(record, [b], "runs/x", allow_family_overlap=True)
