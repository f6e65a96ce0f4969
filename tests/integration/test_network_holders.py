"""Network namespaces that trials use one after another: what a trial leaves there, the next one does not find."""

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.keeping.cleaning import drain
from tests.support.docker_parts import a_run, environment_of, remove_run, write_task
from tests.support.tiers import first

pytestmark = [
    pytest.mark.usefixtures("docker_ready"),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are shared where this process may restore their files"),
]
FILES = "for f in /etc/hosts /etc/hostname /etc/resolv.conf; do stat -c '%n %a %u' $f; cat $f; done; hostname"
SPOIL = "echo '6.6.6.6 evil' >> /etc/hosts; echo x > /etc/hostname; chmod 600 /etc/resolv.conf; chown 1 /etc/hosts"
# The side that closes first keeps its port for a minute.
LINGER = (
    "perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(LocalPort => 8000, Listen => 5); "
    'my $c = IO::Socket::INET->new("127.0.0.1:8000"); my $a = $s->accept; close $a; <$c>; close $c\' && echo served'
)


@pytest.fixture
def run_id() -> Iterator[str]:
    run_id = a_run("test-holders")
    yield run_id
    remove_run(run_id)


@contextlib.asynccontextmanager
async def trial(folder: Path, run_id: str, **options: Any) -> AsyncIterator[tuple[DockerEngineEnvironment, str]]:
    """A running environment, and its container's network mode."""
    environment = environment_of(write_task(folder / uuid.uuid4().hex[:8]), run_id, **options)
    await environment.start(force_build=False)
    try:
        yield environment, engine().inspect_container(environment.container)["HostConfig"]["NetworkMode"]
    finally:
        await environment.stop(delete=True)
        await drain()


async def mode_of_a_trial(folder: Path, run_id: str, **options: Any) -> str:
    async with trial(folder, run_id, **options) as (_, mode):
        return mode


async def said(environment: DockerEngineEnvironment, command: str) -> str:
    return (await environment.exec(command, timeout_sec=600)).stdout or ""


async def test_a_place_is_used_again_and_shows_nothing_of_the_trial_before(tmp_path: Path, run_id: str) -> None:
    async with trial(tmp_path, run_id) as (environment, first):
        new = await said(environment, FILES)
    assert not first.startswith("container:"), "one trial does not repay a holder"
    async with trial(tmp_path, run_id) as (environment, second):
        found = await said(environment, FILES)
        await environment.exec(SPOIL, user="root")
        assert "evil" in await said(environment, "cat /etc/hosts")
    async with trial(tmp_path, run_id) as (environment, third):
        assert await said(environment, FILES) == found
    assert second == third and second.startswith("container:")
    names = [line for line in new.splitlines() if "harbor" not in line]  # the lines of its own address differ
    assert names == [line for line in found.splitlines() if "harbor" not in line]


async def test_a_port_that_is_not_free_yet_costs_the_next_trial_nothing(tmp_path: Path, run_id: str) -> None:
    await mode_of_a_trial(tmp_path, run_id)
    async with trial(tmp_path, run_id) as (environment, used):
        assert "served" in await said(environment, LINGER)
        assert "served" not in await said(environment, LINGER), "the port should not be free"
    async with trial(tmp_path, run_id) as (environment, other):
        assert "served" in await said(environment, LINGER)
    assert other != used


async def test_trials_at_once_have_a_namespace_each(tmp_path: Path, run_id: str) -> None:
    async def beside_two_others() -> str:
        async with trial(tmp_path, run_id) as (_, mode):
            await all_run.wait()  # none ends, and gives its place to another, before
            return mode

    all_run = asyncio.Barrier(3)
    await asyncio.gather(*(beside_two_others() for _ in range(3)))
    modes = await asyncio.gather(*(beside_two_others() for _ in range(3)))
    assert len(set(modes)) == 3 and all(mode.startswith("container:") for mode in modes)


async def test_a_trial_that_changes_its_network_leaves_no_namespace_to_others(tmp_path: Path, run_id: str) -> None:
    await mode_of_a_trial(tmp_path, run_id)
    async with trial(tmp_path, run_id) as (environment, used):
        for mode, links in ((NetworkMode.NO_NETWORK, 1), (NetworkMode.PUBLIC, 2)):
            await environment.set_network_policy(NetworkPolicy(network_mode=mode))
            assert len((await said(environment, "ls /sys/class/net")).split()) == links
    assert await mode_of_a_trial(tmp_path, run_id) not in (used, "")
    offline = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
    async with trial(tmp_path, run_id, network_policy=offline) as (environment, _):
        assert (await said(environment, "ls /sys/class/net")).split() == ["lo"]


async def test_a_holder_that_somebody_removed_or_stopped_costs_no_trial(tmp_path: Path, run_id: str) -> None:
    await mode_of_a_trial(tmp_path, run_id)
    for change in ("remove_container", "stop"):
        mode = await mode_of_a_trial(tmp_path, run_id)
        assert mode.startswith("container:")
        options = {"force": True} if change == "remove_container" else {"timeout": 0}
        getattr(engine(), change)(mode.removeprefix("container:"), **options)
        async with trial(tmp_path, run_id) as (environment, _):
            assert await said(environment, "echo up") == "up\n"


@pytest.mark.parametrize("options", first(1, [{"own_network": True}, {"cap_add": ["NET_ADMIN"]}]))
async def test_a_namespace_of_its_own(tmp_path: Path, run_id: str, options: dict[str, Any]) -> None:
    for _ in range(3):
        assert not (await mode_of_a_trial(tmp_path, run_id, **options)).startswith("container:")
