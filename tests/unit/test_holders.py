"""Network namespaces that trials share, where the daemon fails while one is made."""

import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import requests
from docker.errors import APIError

from harbortrainer.docker.box import first_process, first_shell, holders
from harbortrainer.docker.box.holders import Holder, Holders, Key
from tests.support.fake_engine import FakeEngine, use_engine

KEY = Key(None, "run", networked=True)


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> Holders:
    """A trial has ended, so the next one may have a holder."""
    monkeypatch.setattr(holders.os, "geteuid", lambda: 0)
    use_engine(monkeypatch, FakeEngine())
    monkeypatch.setattr(holders, "_read", lambda made, key: Holder(made, key, "sha256:0", pid=1))
    all_of_them = Holders()
    all_of_them.ended("first", KEY)
    return all_of_them


def failing(error: Exception) -> Callable[[str], str]:
    def make(name: str) -> str:
        raise error

    return make


@pytest.mark.parametrize("error", [requests.ConnectionError("away"), requests.ReadTimeout("slow"), APIError("no")])
def test_a_daemon_that_fails_once_makes_the_next_holder(ready: Holders, error: Exception) -> None:
    assert ready.take("a", KEY, failing(error)) is None
    assert ready.take("b", KEY, lambda name: "made") == "made"


def test_a_daemon_that_is_away_for_the_removal_too_leaves_room_for_the_next(
    ready: Holders, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(FakeEngine):
        def remove_container(self, name: str, **_: Any) -> None:
            raise requests.ConnectionError("away")

    use_engine(monkeypatch, Away())
    with pytest.raises(requests.ConnectionError):
        ready.take("a", KEY, failing(requests.ConnectionError("away")))
    assert ready.take("b", KEY, lambda name: "made") == "made"


def test_a_daemon_whose_processes_are_not_here_gives_no_holder(ready: Holders) -> None:
    assert ready.take("a", KEY, failing(FileNotFoundError("/proc/1234"))) is None
    assert ready.take("b", KEY, lambda name: "made") is None


def test_no_first_shell_is_taken_of_a_container_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    use_engine(monkeypatch, Ended())
    assert first_shell.first_shell("c") is None


class Ended(FakeEngine):
    def inspect_container(self, container: str) -> dict[str, Any]:
        process = subprocess.Popen(["true"])
        process.wait()  # its number is nobody's now
        return {"State": {"Pid": process.pid}, "HostnamePath": "/var/lib/docker/containers/c/hostname"}


def test_only_the_oldest_container_is_forgotten() -> None:
    for number in range(1030):
        # a name of its own: a test that removed such a container would end this process
        first_process.note(f"noted{number}", os.getpid(), os.getpid())
    assert list(first_process._noted) == [f"noted{number}" for number in range(6, 1030)]
