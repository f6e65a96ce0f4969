"""Harbor's filter of task files gives the same answers as without this package's short cut."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from harbor.models.task.file_filter import TaskFileFilter
from harbor.models.task.task import Task

from harbortrainer import harbor
from tests.support.task_folder import write_task


def rules(task: Path) -> None:
    (task / ".harborignore").write_text("*.md\n")
    (task / "tests" / ".harborignore").write_text("secret*\n")


def link(task: Path) -> None:
    rules(task / "environment")
    (task / "solution" / "environment").symlink_to(task / "environment")


def nothing(_task: Path) -> None: ...


@pytest.mark.parametrize("change", [nothing, rules, link])
def test_the_short_cut_changes_no_answer(tmp_path: Path, change) -> None:
    task = write_task(tmp_path / "task", files={"tests/secret.txt": "x", "tests/data/notes.md": "x", "solution/a": "x"})
    (task / "environment" / "tests").mkdir(parents=True)
    change(task)
    paths = [*task.rglob("*"), task, task / ".harborignore", task / "absent", tmp_path, Path("tests/test.sh")]
    harbor.hasten_task_files()
    thorough: Any = inspect.unwrap(TaskFileFilter.is_excluded)
    assert TaskFileFilter.is_excluded is not thorough
    quick, slow = TaskFileFilter(task), TaskFileFilter(task)
    found = {path: quick.is_excluded(path) for path in paths}
    assert found == {path: thorough(slow, path) for path in paths}
    assert any(found.values()) and not all(found.values())


def test_a_link_out_of_the_task_is_still_refused(tmp_path: Path) -> None:
    harbor.hasten_task_files()
    task = write_task(tmp_path / "task", files={"tests/data/notes.md": "x"})
    assert Task(task).name.endswith("task")
    (task / "tests" / "data" / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="Input paths must stay within the task"):
        Task(task)


def test_a_batch_that_ends_before_its_first_trial_has_no_files(tmp_path: Path) -> None:
    harbor.write_job_files(tmp_path / "step_000000", 8)
    assert not list(tmp_path.iterdir())
