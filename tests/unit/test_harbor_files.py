"""Harbor's filter of task files gives the same answers as without this package's short cut."""

import contextlib
import inspect
from pathlib import Path
from typing import Any

import pytest
from harbor import __version__
from harbor.models.task.file_filter import TaskFileFilter
from harbor.models.task.task import Task
from harbor.publisher.packager import Packager

from harbortrainer import harbor
from harbortrainer.durable.facts import fact
from tests.support.small_server import wait_until
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


@pytest.mark.filterwarnings("ignore:Task.checksum:DeprecationWarning")
def test_digests_are_remembered_until_a_file_changes(tmp_path: Path) -> None:
    """A run digested the files of a task anew for each trial, twice."""
    harbor.hasten_task_files()
    task = write_task(tmp_path / "tasks" / "task", files={"tests/data.txt": "1"})
    linked = write_task(tmp_path / "tasks" / "linked", files={"tests/b": "1"})
    (linked / "tests" / "a").symlink_to("b")
    assert wait_until(lambda: bool(remembered(task)), 10)

    first = digests(task)
    assert task / "tests" / "data.txt" in first[1]
    assert remembered(task) == [(first[0], [str(path) for path in first[1]]), first[2]]
    (task / "tests" / "data.txt").write_text("2")
    second = digests(task)
    assert second[0] != first[0] and second[2] != first[2] and second[1] == first[1]
    assert digests(linked) == digests(linked)
    assert not remembered(linked)


def digests(task: Path) -> tuple[str, list[Path], str]:
    return *Packager.compute_content_hash(task), Task(task).checksum


def remembered(task: Path) -> list[Any]:
    """The two digests as they are kept; nothing is kept of files that have just changed, and of links."""
    digests(task)
    with contextlib.suppress(LookupError):
        return [fact(task, f"{name} of Harbor {__version__}", {}.popitem) for name in ("content", "checksum")]
    return []


def test_a_batch_that_ends_before_its_first_trial_has_no_files(tmp_path: Path) -> None:
    harbor.write_job_files(tmp_path / "step_000000", 8)
    assert not list(tmp_path.iterdir())
