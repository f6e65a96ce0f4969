"""What tests of real trials leave in the Docker daemon, and which of them look at that."""

import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO

import pytest

from harbortrainer.docker.keeping import cleaning
from tests.conftest import LOOK, TIDY
from tests.support import agent_endings, trial_parts
from tests.support.docker_parts import containers

TURN = Path(tempfile.gettempdir(), f"harbortrainer-tests-{os.getuid()}.lock")

_KEPT: list[IO[str]] = []  # the lock, from the first file that looks at leftovers to the first after them that does not


@pytest.fixture(scope="module", autouse=True)
def turn_at_the_daemon(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a file that looks at leftovers would see, no other process of the tests removes meanwhile."""
    name = request.path.stem.removeprefix("test_")
    if name in LOOK and not _KEPT:
        _KEPT.append(TURN.open("w"))
        fcntl.flock(_KEPT[0], fcntl.LOCK_EX)
    elif name not in LOOK and _KEPT:
        _KEPT.pop().close()
    with TURN.open("w") as turn:
        if name in TIDY:
            fcntl.flock(turn, fcntl.LOCK_SH)
        yield


@pytest.fixture(autouse=True)
async def removals_end() -> AsyncIterator[None]:
    """A removal that is under way would end with the test's event loop."""
    yield
    await cleaning.drain()


@pytest.fixture
async def nothing_left(docker_ready: str) -> AsyncIterator[None]:
    """No trial's container of this process is there after the test; each test before it has waited for its own."""
    yield
    await cleaning.drain()
    assert containers(trial_parts.RUN) + containers(agent_endings.RUN) == []
