"""What tests of real trials leave in the Docker daemon."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from harbortrainer.docker.keeping import cleaning
from tests.support import agent_endings, trial_parts
from tests.support.docker_parts import containers
from tests.support.own_daemon import OwnDaemon, own_daemon


@pytest.fixture(autouse=True)
async def removals_end() -> AsyncIterator[None]:
    """A removal that is under way would end with the test's event loop."""
    yield
    await cleaning.drain()


@pytest.fixture(scope="session")
def source(server_url: str, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step on the session's server; its folder's neighbours are other runs from it."""
    from tests.support.served_run import arguments, served_run

    words = arguments(server_url, tmp_path_factory.mktemp("runs"), "source", "max_steps=1")
    return asyncio.run(served_run(words))


@pytest.fixture(scope="session")
def started_docker(docker_ready: str) -> Iterator[OwnDaemon]:
    """A daemon of the tests' own with the base image. Its files are one group (tests/conftest.py): it starts once."""
    with own_daemon(docker_ready) as running:
        yield running


@pytest.fixture
def own_docker(started_docker: OwnDaemon, monkeypatch: pytest.MonkeyPatch) -> OwnDaemon:
    """The same, which clients of this process ask."""
    monkeypatch.setenv("DOCKER_HOST", started_docker.host)
    return started_docker


@pytest.fixture
async def nothing_left(docker_ready: str) -> AsyncIterator[None]:
    """No trial's container of this process is there after the test; each test before it has waited for its own."""
    yield
    await cleaning.drain()
    assert containers(trial_parts.RUN) + containers(agent_endings.RUN) == []
