"""When images were used last, and by whom."""

import json
import os
import time
from pathlib import Path

import pytest

from src.process import HOST, PID, this_process
from src.rollout.docker import image_uses
from src.rollout.docker.image_uses import forget_uses, is_in_use, last_use, note_use

IMAGE = "harbortrainer/task:abc"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(image_uses, "_noted", {})
    return image_uses._folder(IMAGE)


def test_a_use_is_noted_and_forgotten() -> None:
    assert (last_use(IMAGE), is_in_use(IMAGE)) == (0.0, False)
    note_use(IMAGE)
    assert abs(last_use(IMAGE) - time.time()) < 3600 and is_in_use(IMAGE)
    assert not is_in_use("harbortrainer/task:other")
    forget_uses(IMAGE)
    assert (last_use(IMAGE), is_in_use(IMAGE)) == (0.0, False)


def test_a_dead_process_uses_nothing_but_its_time_counts(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "dead").write_text(json.dumps(this_process() | {PID: f"{os.getpid()}:1"}))
    (folder / "elsewhere").write_text(json.dumps(this_process() | {HOST: "elsewhere"}))
    (folder / "broken").write_text("{")
    os.utime(folder / "dead", (1000, 1000))
    os.utime(folder / "elsewhere", (500, 500))
    assert (last_use(IMAGE), is_in_use(IMAGE)) == (1000.0, False)
    note_use(IMAGE)  # notes of the dead make place
    assert not (folder / "dead").exists() and (folder / "elsewhere").exists() and is_in_use(IMAGE)


def test_a_use_is_written_once_in_a_while(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note_use(IMAGE)
    (file,) = folder.iterdir()
    os.utime(file, (1000, 1000))
    note_use(IMAGE)
    assert last_use(IMAGE) == 1000.0
    monkeypatch.setattr(image_uses, "NOTE_SEC", 0.0)
    note_use(IMAGE)
    assert last_use(IMAGE) > 1000.0


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    note_use(IMAGE)
    assert last_use(IMAGE) == 0.0
