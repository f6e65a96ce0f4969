"""Removal in the background: tried again while the daemon is away, given up at the end of the run."""

import asyncio
from collections.abc import Sequence
from http.client import INTERNAL_SERVER_ERROR
from typing import Any

import pytest
import requests
from docker.errors import APIError

from harbortrainer.docker.keeping import cleaning, ownership
from tests.support.fake_engine import FakeEngine, use_engine

GONE = requests.ConnectionError("refused")


class Daemon(FakeEngine):
    """`answers`: what each removal raises in turn; None = done. The last one is given again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Exception | None, dead: Sequence[str] = ()) -> None:
        """`dead`: names of containers of a dead process."""
        self.asked = 0
        self._answers, self._dead = answers, dead
        use_engine(monkeypatch, self)

    def containers(self, **_: Any) -> list[dict[str, Any]]:
        dead = ownership.labels("r") | {cleaning.PID: "999999:1"}
        return [{"Names": [f"/{name}"], "Labels": dead, "Created": 0, "Id": f"id-{name}"} for name in self._dead]

    def remove_container(self, name: str, **_: Any) -> None:
        self.asked += 1
        if (fault := self._answers[min(self.asked, len(self._answers)) - 1]) is not None:
            raise fault


def refusal() -> APIError:
    response = requests.Response()
    response.status_code = INTERNAL_SERVER_ERROR
    return APIError("busy", response)


async def test_a_daemon_that_comes_back_loses_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(monkeypatch, GONE, GONE, refusal(), None)
    cleaning.in_background(cleaning.remove_after("c", None))
    await cleaning.drain()
    assert daemon.asked == 4 and not cleaning._pending


async def test_a_daemon_that_stays_away_is_given_up_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon(monkeypatch, GONE)
    cleaning.in_background(cleaning.remove_after("c", None))
    while daemon.asked < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await cleaning.drain(patience_sec=0)
    assert not cleaning._pending
    assert "yet to remove 1 container" in caplog.text and "container c is left to the reaper" in caplog.text


async def test_a_daemon_that_refuses_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(monkeypatch, refusal())
    await cleaning.remove_after("c", None)
    assert daemon.asked == cleaning.MAX_REFUSALS


def test_a_container_that_does_not_go_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run began with a traceback where an earlier one's container hung in its removal."""

    class Stuck(Daemon):
        def remove_container(self, name: str, **_: Any) -> None:
            self.asked += 1
            if "stuck" in name:
                raise requests.ReadTimeout("read timed out")

    daemon = Stuck(monkeypatch, dead=("stuck", "other"))
    assert cleaning.reap() == ["other"] and daemon.asked == 2


def test_a_daemon_that_removes_nothing_is_asked_for_some_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request waits for minutes: a run with forty left containers waited for twenty of them."""
    daemon = Daemon(monkeypatch, requests.ReadTimeout("read timed out"), dead=[f"c{n}" for n in range(12)])
    assert cleaning.reap() == [] and 4 <= daemon.asked <= 8


def test_a_daemon_that_goes_away_ends_the_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    Daemon(monkeypatch, GONE, dead=("c",))
    with pytest.raises(requests.ConnectionError):
        cleaning.reap()
