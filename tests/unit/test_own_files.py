"""Changes of verification's own files, whoever made them: tests after it had begun, rewards but by their writers."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harbortrainer.docker.integrity.marks import CLOSE_WRITE, Event
from harbortrainer.docker.integrity.own_files import REWARDS, OwnFiles

TEXT, JSON = REWARDS
ME = os.getpid()


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process.pid


def written(*writes: tuple[str, int, set[int]]) -> set[str]:
    """What these writes change: path, process and the processes that are known then."""
    files = OwnFiles(ME)
    for path, pid, known in writes:
        files.note_write(Event(path, CLOSE_WRITE, pid), known)
    return files.changed


def test_a_writer_and_what_it_started_since_may_write_a_reward_again(child: int) -> None:
    assert written((TEXT, ME, {ME}), (TEXT, ME, {ME}), (JSON, child, {ME, child})) == set()
    assert written((f"{TEXT}.log", child, {child}), (TEXT, ME, {ME, child})) == set()


def test_who_was_there_before_or_has_ended_or_is_no_child_may_not(child: int) -> None:
    assert written((TEXT, ME, {ME, child}), (TEXT, child, {ME, child})) == {TEXT}
    assert written((JSON, child, {ME, child}), (TEXT, ME, {ME, child})) == {TEXT}
    assert written((TEXT, child, {child}), (TEXT, os.getppid(), {child})) == {TEXT}
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert written((TEXT, ME, {ME}), (TEXT, ended.pid, {ME})) == {TEXT}


def test_a_test_that_was_changed_since_or_is_gone_counts(tmp_path: Path) -> None:
    old, gone = tmp_path / "old", tmp_path / "gone"
    old.write_text("1")
    later, files = time.time() + 1, OwnFiles(ME)
    assert files.changes([str(old)], later, ()) == set()
    assert files.changes([str(old), str(gone)], later, ()) == {str(gone)}
    assert files.changes([str(old)], old.stat().st_ctime - 1, ()) == {str(old)}  # whatever its own time says


def test_what_a_program_that_is_left_can_still_write_counts(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("1")
    assert OwnFiles(ME).changes([str(old)], time.time() + 1, [TEXT, str(old), "/app/log"]) == {TEXT, str(old)}
