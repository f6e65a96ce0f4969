"""Each request to a daemon that answers some only ends within a limit: in one line, or as a fault of a trial."""

from collections.abc import Callable, Iterator

import pytest
import requests

from harbortrainer.docker.box.first_shell import duplex
from harbortrainer.docker.checks.preflight import check_docker
from harbortrainer.docker.daemon import engine, ping_docker, remove_container
from harbortrainer.docker.images.window import ImageWindow
from harbortrainer.docker.keeping.cleaning import tidy
from harbortrainer.errors import EnvironmentFault
from tests.support.silent_daemon import SilentDaemon, silent_daemon


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentDaemon]:
    with silent_daemon(monkeypatch) as server:
        yield server


@pytest.mark.parametrize(
    ("asked", "work"),
    [
        ("GET /v1.41/info", lambda: check_docker([], 1, {})),
        ("GET /v1.41/info", lambda: ImageWindow(1.0)),
        ("GET /v1.41/networks", lambda: tidy("r")),
    ],
)
def test_a_run_that_gets_no_answer_before_its_first_trial_ends_in_one_line(
    asked: str, work: Callable[[], object], daemon: SilentDaemon
) -> None:
    daemon.silent = asked
    with pytest.raises(EnvironmentFault) as raised:
        work()
    assert f"no answer to {asked} in time; restart it" in str(raised.value) and "\n" not in str(raised.value)


def test_a_daemon_whose_networks_are_deadlocked_counts_as_away(daemon: SilentDaemon) -> None:
    """Its pings are answered; each trial would wait two minutes for its container, and be a fault of its task."""
    assert ping_docker() is None
    daemon.silent = "GET .*/networks"
    assert "no answer to GET /networks" in (ping_docker() or "")


def test_an_attach_that_is_not_answered_ends(daemon: SilentDaemon) -> None:
    """Its thread was lost for ever; after 32 such trials no request to Docker began."""
    daemon.silent = "attach"
    with pytest.raises(requests.ReadTimeout):
        duplex(engine().attach_socket("c", params={"stream": 1}))


def test_a_removal_that_another_request_began_and_never_ends_is_given_up(daemon: SilentDaemon) -> None:
    """The end of the run waited for it for ever."""
    daemon.busy, daemon.silent = "DELETE", "condition=removed"
    with pytest.raises(requests.ReadTimeout):
        remove_container("c")


def test_an_attach_that_is_answered_waits_for_no_output(daemon: SilentDaemon) -> None:
    """What is attached prints nothing until it is asked to; the request's limit is not one for the stream."""
    raw, early = duplex(engine().attach_socket("c", params={"stream": 1}))
    raw.close()
    assert early == b""
