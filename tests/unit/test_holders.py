"""Network namespaces that trials share, where the daemon fails while one is made."""

from collections.abc import Callable

import pytest
import requests
from docker.errors import APIError

from harbortrainer.docker import holders
from harbortrainer.docker.holders import Holder, Holders, Key

KEY = Key(None, "run", networked=True)


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> Holders:
    """A trial has ended, so the next one may have a holder."""
    monkeypatch.setattr(holders.os, "geteuid", lambda: 0)
    monkeypatch.setattr(holders, "remove_container", lambda name: None)
    monkeypatch.setattr(holders, "_read", lambda made, key: Holder(made, key, pid=1))
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
    monkeypatch.setattr(holders, "remove_container", lambda name: failing(requests.ConnectionError("away"))(name))
    with pytest.raises(requests.ConnectionError):
        ready.take("a", KEY, failing(requests.ConnectionError("away")))
    assert ready.take("b", KEY, lambda name: "made") == "made"


def test_where_the_daemons_files_are_elsewhere_no_other_is_tried(ready: Holders) -> None:
    assert ready.take("a", KEY, failing(FileNotFoundError("/var/lib/docker"))) is None
    assert ready.take("b", KEY, lambda name: "made") is None
