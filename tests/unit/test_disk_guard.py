"""The guard of Docker's disk, with a daemon that is told what its containers have written."""

import logging
import threading
from typing import Any

import pytest
import requests

from harbortrainer.docker.keeping.disk_guard import GIB, DiskGuard, Space, reserve_of
from harbortrainer.docker.keeping.ownership import TRIAL
from tests.support.fake_engine import FakeEngine, use_engine


class Disk(FakeEngine):
    """`written`: bytes by session; what a container has written is free again when it is removed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int, **written: int) -> None:
        self.free = free
        self.written = written
        self.guard = DiskGuard("r", lambda: Space(self.free, 100 * GIB))
        use_engine(monkeypatch, self)

    def containers(self, **_: Any) -> list[dict[str, Any]]:
        return [{"Id": name, "Labels": {TRIAL: name}, "SizeRw": size} for name, size in self.written.items()]

    def remove_container(self, name: str, **_: Any) -> None:
        self.free += self.written.pop(name)


@pytest.mark.parametrize(
    ("free", "total", "reserve"), [(80, 100, 5), (80, 1000, 8), (18, 20, 2), (3, 100, 1.5), (0, 100, 0)]
)
def test_the_reserve_is_a_share_within_limits_and_never_most_of_what_is_left(
    free: int, total: int, reserve: float
) -> None:
    assert reserve_of(Space(free * GIB, total * GIB)) == reserve * GIB


def test_nobody_is_ended_for_what_others_write(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(monkeypatch, 20 * GIB, a__env=GIB // 10)
    disk.guard.check_once()
    disk.free = GIB
    with caplog.at_level(logging.WARNING, "harbortrainer"):
        disk.guard.check_once()
        disk.guard.check_once()
    assert set(disk.written) == {"a__env"}
    assert caplog.text.count("no container of this run holds much") == 1


def test_a_fault_of_one_look_does_not_end_the_guard() -> None:
    reads, closed = iter([requests.ConnectionError("away")]), threading.Event()

    def read() -> Space | None:
        if (error := next(reads, None)) is not None:
            raise error
        closed.set()
        return None

    DiskGuard("r", read).watch(closed)
    assert closed.is_set()
