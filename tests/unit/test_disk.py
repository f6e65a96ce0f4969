"""A disk that cannot be written: told in one line with the way on, and no file left half written."""

import contextlib
import errno
import os
import resource
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harbortrainer.cli.main import run_command
from harbortrainer.durable import disk, files
from harbortrainer.durable.jsonl import append_line, read_lines
from harbortrainer.errors import DiskFault
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.rollout.quarantine import RETRIES, Quarantine


def full(number: int = errno.ENOSPC) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", disk.CANNOT_WRITE)
def test_the_line_names_the_file_the_cause_and_the_command_that_goes_on(tmp_path: Path, number: int) -> None:
    (tmp_path / "ledger.jsonl").touch()
    path = tmp_path / "trajectories" / "step_000000" / "x.npz"
    with pytest.raises(DiskFault) as told, disk.disk_errors(path):
        raise full(number)
    text = str(told.value)
    assert text.startswith(f"{path}: cannot be written: {os.strerror(number)}; ") and "\n" not in text
    assert text.endswith(f"then continue with: python -m src.train resume={tmp_path}")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("config.json", '{"command": "sft"}', "sft resume="),
        ("config.json", '{"model_name": "m"}', "train resume="),
        ("config.json", "damaged", "train resume="),
        ("plan.json", "{}", "evaluate out="),
    ],
)
def test_the_command_is_that_of_the_run(tmp_path: Path, file: str, text: str, words: str) -> None:
    (tmp_path / "ledger.jsonl").touch()
    (tmp_path / file).write_text(text)
    with pytest.raises(DiskFault) as told, disk.disk_errors(tmp_path / "x"):
        raise full()
    assert str(told.value).endswith(f"then continue with: python -m src.{words}{tmp_path}")


def test_other_errors_pass_and_a_run_that_has_not_begun_starts_again(tmp_path: Path) -> None:
    for error in (FileNotFoundError(errno.ENOENT, "no"), TimeoutError("late")):
        with pytest.raises(type(error)), disk.disk_errors(tmp_path):
            raise error
    with pytest.raises(DiskFault, match="make room on that disk, then start again"), disk.disk_errors(tmp_path / "x"):
        raise full()


def test_a_disk_fault_anywhere_ends_a_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/x/wandb/y")

    assert run_command(work) == 2
    assert capsys.readouterr().err == (
        "error: /runs/x/wandb/y: cannot be written: No space left on device; make room on that disk, then start again\n"
    )


def test_two_threads_replace_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with files.replacing(path) as slow:
        slow.write(b"slow")
        quick = threading.Thread(target=files.replace_text, args=(path, "quick"))
        quick.start()
        quick.join()
        assert path.read_text() == "quick"
    assert path.read_text() == "slow" and [*tmp_path.iterdir()] == [path]


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As `ulimit -f` in a shell: what goes beyond is cut, then refused."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_folder_is_tried_by_writing(tmp_path: Path) -> None:
    disk.require_writable(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(DiskFault, match=os.strerror(errno.EFBIG)), files_of_at_most(1000):
        disk.require_writable(tmp_path)


def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    append_line(path, {"a": 1}, checked=True)
    with pytest.raises(DiskFault), files_of_at_most(path.stat().st_size + 50):
        append_line(path, {"b": "x" * 100}, checked=True)
    append_line(path, {"c": 3}, checked=True)
    assert read_lines(path, checked=True) == [{"a": 1}, {"c": 3}]


def test_a_replacement_that_does_not_fit_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    files.replace_text(path, "old")
    with pytest.raises(DiskFault, match=str(path)), files_of_at_most(2):
        files.replace_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_without_a_home_the_cache_is_of_this_process(tmp_path: Path, monkeypatch, caplog) -> None:
    """As of a service, or of a container's user without a name."""
    home = "/proc/nobody"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{home}/.cache")
    folder = files.cache_folder("with-tmux")
    files.make_folder(folder)
    assert folder.parent.parent == tmp_path and files.cache_folder("with-tmux") == folder
    assert caplog.messages == [
        f"{home}/.cache/harbortrainer cannot be written: nothing is cached after this process; set XDG_CACHE_HOME"
    ]


def test_dockers_full_disk_quarantines_nobody() -> None:
    quarantine = Quarantine({})
    for detail, out in (("write /var/lib/docker/x: No space left on device", []), ("no such image", ["t"])):
        for number in range(RETRIES.faults):
            quarantine.note(Trajectory("t", f"t-{number}", (), None, Outcome.INFRASTRUCTURE_ERROR, detail))
        assert list(quarantine.reasons) == out
