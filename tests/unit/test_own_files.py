"""Changes of verification's own files, whoever made them: tests after it had begun, rewards but by their writers."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harbortrainer.docker.integrity import own_files
from harbortrainer.docker.integrity.marks import CLOSE_WRITE, Event
from harbortrainer.docker.integrity.own_files import REWARDS, OwnFiles

TEXT, JSON = REWARDS
ME = os.getpid()


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process.pid


def written(*writes: tuple[str, int]) -> set[str]:
    """What these writes change: path and process."""
    files = OwnFiles(ME)
    for path, pid in writes:
        files.note_write(Event(path, CLOSE_WRITE, pid))
    return files.changed


def test_a_writer_and_what_it_started_may_write_a_reward_again(child: int) -> None:
    assert written((TEXT, ME), (TEXT, ME), (JSON, child)) == set()
    assert written((f"{TEXT}.log", child), (TEXT, ME)) == set()


def test_who_has_ended_or_is_no_child_may_not(child: int) -> None:
    assert written((JSON, child), (TEXT, ME)) == {TEXT}
    assert written((TEXT, child), (TEXT, os.getppid())) == {TEXT}
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert written((TEXT, ME), (TEXT, ended.pid)) == {TEXT}


def test_a_test_that_was_changed_since_or_is_gone_counts(tmp_path: Path) -> None:
    old, gone = tmp_path / "old", tmp_path / "gone"
    old.write_text("1")
    later, files = time.time() + 1, OwnFiles(ME)
    assert files.changes([str(old)], later, ()) == set()
    assert files.changes([str(old), str(gone)], later, ()) == {str(gone)}
    assert files.changes([str(old)], old.stat().st_ctime - 1, ()) == {str(old)}  # whatever its own time says


def test_a_folder_in_place_of_a_reward_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_files, "REWARDS", (str(tmp_path),))
    assert str(tmp_path) in OwnFiles(ME).changes([], time.time() + 1, ())


def test_who_wrote_what_others_opened_is_told(child: int) -> None:
    files = OwnFiles(ME)
    for path in ("/tests/mine", "/tests/given", "/tests/seen", TEXT):
        files.note_write(Event(path, CLOSE_WRITE, child))
    readers = {"/tests/mine": [child], "/tests/seen": [child, ME], "/tests/given": [ME], "/app/x": [ME]}
    rewards = {TEXT: [child], JSON: []}
    assert files.writers(["/tests/given"], 0, readers) == rewards | {"/tests/seen": [child]}
    assert files.writers(["/tests/given"], 0, {}) == rewards | {one: [child] for one in ("/tests/mine", "/tests/seen")}


def test_who_wrote_what_was_moved_there_is_told(child: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = tmp_path / "new"
    monkeypatch.setattr(own_files, "REWARDS", (str(new),))
    new.touch()
    files = OwnFiles(ME)
    with new.open() as file:
        for path, pid in ((str(new), ME), ("/app/another", ME), ("/app/x", child)):
            files.note_write(Event(path, CLOSE_WRITE, pid, file=file.fileno()))
    assert files.writers([], 0, {})[str(new)] == sorted((ME, child))


def test_a_file_of_the_system_that_is_another_since_or_gone_is_told() -> None:
    new, gone = os.path.realpath("/etc/passwd"), "/usr/lib/gone"
    readers = {path: [ME] for path in (new, gone, "/app/gone")}
    assert OwnFiles(ME).writers([], 0, readers).keys() == {*REWARDS, new, gone}
    assert OwnFiles(ME).writers([], time.time() + 1, readers).keys() == {*REWARDS, gone}


def test_what_a_program_that_is_left_can_still_write_counts(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("1")
    assert OwnFiles(ME).changes([str(old)], time.time() + 1, [TEXT, str(old), "/app/log"]) == {TEXT, str(old)}
