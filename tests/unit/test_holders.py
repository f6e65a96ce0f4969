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
from harbortrainer.docker.integrity import layer
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


class Engine(FakeEngine):
    """Knows one container."""

    def __init__(self, *running: bool) -> None:
        """What each look at the container sees."""
        self._running, self._process = list(running), subprocess.Popen(["true"])
        self._process.wait()  # its number is nobody's now

    def inspect_container(self, container: str) -> dict[str, Any]:
        state = {"Running": self._running.pop(0), "Pid": self._process.pid}
        return {"State": state, "HostnamePath": "/var/lib/docker/containers/c/hostname"}


@pytest.mark.parametrize("ended", [False, True])
def test_only_a_running_container_that_is_not_seen_is_elsewhere(
    ready: Holders, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """One that ended at its start, as one without memory does, switches nothing off."""
    use_engine(monkeypatch, Engine(not ended))
    assert ready.take("a", KEY, failing(FileNotFoundError("/proc/1234"))) is None
    assert ready.take("b", KEY, lambda name: "made") == ("made" if ended else None)


@pytest.mark.parametrize("ended", [False, True])
def test_first_shells_go_on_after_a_container_that_ended(monkeypatch: pytest.MonkeyPatch, ended: bool) -> None:
    host = f"unix:///ended-{ended}"
    monkeypatch.setenv("DOCKER_HOST", host)
    use_engine(monkeypatch, Engine(True, not ended))
    assert first_shell.first_shell("c") is None
    assert (host in first_shell._impossible) != ended


def test_only_the_oldest_container_is_forgotten() -> None:
    for number in range(1030):
        # a name of its own: a test that removed such a container would end this process
        layer.remember_folders(f"noted{number}", {})
        first_process.remember_root(f"noted{number}", os.getpid(), os.getpid())
    for known in (layer._folders, first_process._firsts):
        assert list(known) == [f"noted{number}" for number in range(6, 1030)]
