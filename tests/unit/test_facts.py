"""What is known of task directories is found again only where files have changed."""

import os
import time
from pathlib import Path

import pytest

from harbortrainer.durable import facts
from harbortrainer.durable.facts import fact


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
    task = old_task(tmp_path / "set" / "a")
    assert fact(task, "n", lambda: 1) == 1
    facts._store(str(task.parent)).save()
