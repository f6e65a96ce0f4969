"""What tests of real trials leave in the Docker daemon."""

from collections.abc import AsyncIterator

import pytest

from harbortrainer.docker.keeping import cleaning
from tests.support import agent_endings, trial_parts
from tests.support.docker_parts import containers


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
