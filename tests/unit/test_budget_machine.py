"""Whether a machine is busy, by the kernel's own count."""

from pathlib import Path

import pytest

from src.budget import machine


def test_the_share_is_of_the_time_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2\n")
    monkeypatch.setattr(machine, "_STAT", stat)
    # of 200 ticks 30 are idle and 20 wait for a disk
    monkeypatch.setattr(machine.time, "sleep", lambda _: stat.write_text("cpu  220 10 70 830 70 0 0 0 9 0\n"))
    assert machine.busy_share(1.0) == pytest.approx(0.75)
    monkeypatch.setattr(machine, "_STAT", tmp_path / "none")
    assert machine.busy_share(1.0) == 0.0
