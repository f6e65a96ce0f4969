"""What is known of task directories is found again only where files have changed."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from harbortrainer.durable import facts, listed
from harbortrainer.durable.facts import fact
from harbortrainer.tasks.folders import find_fault
from harbortrainer.venues.harbor.reading import read_listed, read_run
from tests.support.task_folder import write_task


@pytest.fixture(autouse=True)
def cache() -> None:
    facts._store.cache_clear()


def old_task(folder: Path) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test.sh").write_text("true\n")
    time.sleep(1.5 * facts._SETTLED_NS / 1e9)  # files that have just changed are not trusted
    return folder


def test_a_fact_is_kept_for_the_next_process_until_a_file_changes(tmp_path: Path) -> None:
    task, found = old_task(tmp_path / "set" / "a"), list[int]()

    def find() -> int:
        found.append(len(found))
        return len(found)

    assert [fact(task, "n", find), fact(task, "n", find)] == [1, 1]
    facts._store(str(task.parent)).save()
    facts._store.cache_clear()  # as in the next process
    assert fact(task, "n", find) == 1
    file = task / "tests" / "test.sh"
    before = file.stat()
    file.write_text("fals\n")  # as long as before, and with its old time
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert fact(task, "n", find) == 2


def test_a_file_that_has_just_changed_is_read_again(tmp_path: Path) -> None:
    task, took, found = tmp_path / "set" / "a", facts._SETTLED_NS, list[int]()
    task.mkdir(parents=True)
    for _ in range(100):  # on a busy machine the file is an old one by the second look
        if took < facts._SETTLED_NS:
            break
        began, answers = time.time_ns(), iter([1, 2])
        (task / "task.toml").write_text(f"# {began}")
        found = [fact(task, "n", answers.__next__) for _ in range(2)]
        took = time.time_ns() - began
    assert found == [1, 2]


def test_without_a_disk_for_them_facts_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no/such")
    monkeypatch.setattr(tempfile, "tempdir", "/proc/no/such")
    task = old_task(tmp_path / "set" / "a")
    read_run([task, task], many=1)
    assert fact(task, "n", lambda: 1) == 1
    facts._store(str(task.parent)).save()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one process a core")
def test_new_tasks_are_read_by_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [write_task(tmp_path / "set" / f"t{n}") for n in range(4)]
    (tasks[3] / "task.toml").write_text("= no toml")
    old_task(tmp_path / "settled")
    monkeypatch.chdir(tmp_path)  # a folder that is given relative to this one
    given = [Path("set", task.name) for task in tasks]
    read_run(given, many=2)
    found = [fact(task, "digest", lambda: "found again") for task in tasks]
    assert found == [listed.digest(task) for task in tasks]
    assert all(fact(task, "needs", lambda: None) for task in tasks[:3])
    assert fact(tasks[3], "needs", lambda: "not read: it is broken") == "not read: it is broken"
    assert (find_fault(tasks[3]) or "").startswith("task.toml: ")
    read_listed(given, many=2)  # what is read already is not read again
    assert fact(tasks[0], "metadata", lambda: "not read") == "not read"
