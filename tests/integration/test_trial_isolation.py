"""Networked trials reach the outside, but neither each other nor the machine of the Docker daemon."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbortrainer.docker.box.environment import ComposeEnvironment, DockerEngineEnvironment
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.keeping import cleaning, ownership
from harbortrainer.docker.keeping.cleaning import drain
from harbortrainer.docker.network import bridge as network
from harbortrainer.docker.network.bridge import trial_network
from tests.support.docker_parts import a_run, containers, environment_of, write_task
from tests.support.outside import PORT, outside, run, web_server
from tests.support.shapes import PREBUILT
from tests.support.tiers import first

pytestmark = [
    pytest.mark.usefixtures("docker_ready"),
    pytest.mark.skipif(os.geteuid() != 0, reason="host rules and namespaces need root"),
]
RUN = a_run("test-isolation")
BLOCKED_SEC, OPEN_SEC = 1.5, 120  # waited for a connection: where none should come, and where one does
LISTEN = (
    "perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(LocalPort => 8000, Listen => 5, ReuseAddr => 1); "
    'open(F, ">/listens"); close F; while (my $c = $s->accept) { print $c "inside\n"; close $c }\''
)


@contextlib.asynccontextmanager
async def trial(folder: Path, *, own: bool = True) -> AsyncIterator[tuple[DockerEngineEnvironment, str]]:
    """A running environment, and its container's ID."""
    before = set(containers(RUN))
    environment = environment_of(write_task(folder), RUN, own_network=own)
    await environment.start(force_build=False)
    try:
        yield environment, next(iter(set(containers(RUN)) - before))
    finally:
        await environment.stop(delete=True)
        await drain()


@pytest.fixture
def host_port() -> Iterator[int]:
    """A port that this machine listens on, at every address."""
    with socket.create_server(("0.0.0.0", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


async def connects(environment: BaseEnvironment, address: str, port: int, seconds: float = BLOCKED_SEC) -> bool:
    script = f"timeout {seconds} bash -c 'exec 3<>/dev/tcp/{address}/{port}' && echo connected"
    return (await environment.exec(script)).stdout == "connected\n"


def addresses() -> list[str]:
    """IPv4 addresses of this machine, without loopback."""
    links = json.loads(run("ip", "-json", "-4", "addr"))
    found = [one["local"] for link in links for one in link["addr_info"]]
    return [address for address in found if not address.startswith("127.")]


def answers(address: str, port: int) -> bool:
    """Whether the machine itself reaches its port at this address; False = the address is gone, with its network."""
    try:
        socket.create_connection((address, port), timeout=OPEN_SEC).close()
    except OSError:
        if address in addresses():
            raise
        return False
    return True


def networks_of(container: str) -> dict[str, dict[str, str]]:
    """Of the container, or of the holder whose namespace it has joined."""
    found = engine().inspect_container(container)
    mode, _, holder = found["HostConfig"]["NetworkMode"].partition(":")
    return networks_of(holder) if mode == "container" else found["NetworkSettings"]["Networks"]


def address_of(container: str) -> str:
    (joined,) = networks_of(container).values()
    return joined["IPAddress"]


def jumps() -> str:
    return run("iptables", "-t", "mangle", "-S", "INPUT")


@pytest.fixture(params=first(1, [True, False]), ids=["own-namespaces", "used-namespaces"])
async def own(request: pytest.FixtureRequest, tmp_path: Path) -> bool:
    """Whether each trial gets a namespace of its own; otherwise two trials have ended, and others use theirs."""
    for i in range(0 if request.param else 2):
        async with trial(tmp_path / f"earlier-{i}a", own=False), trial(tmp_path / f"earlier-{i}b", own=False):
            pass
    return request.param


async def test_trials_reach_the_outside_but_neither_each_other_nor_the_host(
    tmp_path: Path, host_port: int, own: bool
) -> None:
    (tmp_path / "file").write_text("text\n")
    async with trial(tmp_path / "a", own=own) as (a, container), trial(tmp_path / "b", own=own) as (b, _):
        mode = engine().inspect_container(container)["HostConfig"]["NetworkMode"]
        assert mode.startswith("container:") is not own
        await a.exec(f"setsid {LISTEN} >/dev/null 2>&1 & until [ -e /listens ]; do sleep 0.05; done")
        assert await connects(a, "127.0.0.1", 8000, OPEN_SEC)
        assert not await connects(b, address_of(container), 8000)
        with outside() as (here, far, name), web_server(tmp_path, far, "ip", "netns", "exec", name):
            assert await connects(b, far, PORT, OPEN_SEC)
            local = addresses()
            gateway = engine().inspect_network(trial_network().id)["IPAM"]["Config"][0]["Gateway"]
            assert {gateway, here} <= {address for address in local if answers(address, host_port)}
            reached = await asyncio.gather(*(connects(b, address, host_port) for address in local))
            assert not any(reached), dict(zip(local, reached, strict=True))


@contextlib.contextmanager
def metadata_service(folder: Path) -> Iterator[str]:
    """The address of one, which this machine reaches."""
    metadata = "169.254.77.254"  # link-local, as that of a cloud is
    with outside() as (_, far, name):
        run("ip", "-n", name, "addr", "add", f"{metadata}/32", "dev", "lo")
        run("ip", "route", "add", f"{metadata}/32", "via", far)  # it goes with the link
        with web_server(folder, "0.0.0.0", "ip", "netns", "exec", name):
            socket.create_connection((metadata, PORT), timeout=OPEN_SEC).close()
            yield metadata


async def test_trials_do_not_reach_the_metadata_service_of_a_cloud(tmp_path: Path) -> None:
    async with trial(tmp_path / "a") as (environment, _):
        with metadata_service(tmp_path) as metadata:
            far = json.loads(run("ip", "-json", "route", "get", metadata))[0]["gateway"]
            assert await connects(environment, far, PORT, OPEN_SEC)
            assert not await connects(environment, metadata, PORT)


async def unused_network() -> str:
    """The ID of the network of trials, which exists. Skips where another run's trials use it."""
    await drain()
    cleaning.reap(RUN)
    network.forget_network()
    found = trial_network().id
    if engine().inspect_network(found)["Containers"]:
        pytest.skip("trials of another run use the network: it cannot be removed")
    return found


REMOVE = """
import sys
from harbortrainer.docker.keeping.cleaning import owned_objects
print(*[one.remove() for one in owned_objects() if one.id == sys.argv[1]])
"""


@pytest.mark.parametrize(
    "remover", [("docker", "network", "rm"), pytest.param((sys.executable, "-c", REMOVE), marks=pytest.mark.nightly)]
)
async def test_a_network_made_again_while_another_process_removes_it_is_isolated(
    tmp_path: Path, host_port: int, remover: tuple[str, ...]
) -> None:
    old = await unused_network()
    slow = tmp_path / "bin"  # a machine under load, where what the other process does to the rules comes late
    slow.mkdir()
    for name in ("iptables", "iptables-restore"):
        (slow / name).write_text(f'#!/bin/sh\nsleep 1\nexec {shutil.which(name)} "$@"\n')
        (slow / name).chmod(0o755)
    environ = os.environ | {"PATH": f"{slow}:{os.environ['PATH']}"}
    other = await asyncio.create_subprocess_exec(*remover, old, env=environ)
    while engine().networks(filters={"id": old}):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    async with trial(tmp_path / "a") as (environment, container):
        assert trial_network().id != old and not trial_network().exposed
        assert await other.wait() == 0
        gateway = next(iter(networks_of(container).values()))["Gateway"]
        assert not await connects(environment, gateway, host_port)
        with metadata_service(tmp_path) as metadata:
            assert not await connects(environment, metadata, PORT)


async def test_a_container_that_gets_its_network_back_is_isolated_too(
    tmp_path: Path, host_port: int, own: bool
) -> None:
    async with trial(tmp_path / "moved", own=own) as (environment, container):
        for mode in (NetworkMode.NO_NETWORK, NetworkMode.PUBLIC):
            await environment.set_network_policy(NetworkPolicy(network_mode=mode))
        joined = networks_of(container)
        assert list(joined) == [trial_network().name]
        gateway = next(iter(joined.values()))["Gateway"]
        assert not await connects(environment, gateway, host_port)
        resolver = (await environment.exec("cat /etc/resolv.conf; getent hosts $(hostname)")).stdout or ""
        assert "nameserver 127.0.0.11" in resolver and address_of(container) in resolver


async def test_runs_share_the_network_and_find_it_again_or_make_it_anew(tmp_path: Path) -> None:
    cleaning.reap(RUN)
    first = trial_network()
    rules = jumps().count(f"-i {first.bridge} ")  # two processes may have added one each
    network.forget_network()  # as another process
    assert trial_network() == first
    assert not ownership.is_left_over(engine().inspect_network(first.id)["Labels"], RUN)
    assert jumps().count(f"-i {first.bridge} ") == rules > 0  # the rule was not added again
    unused = [one.thing for one in cleaning.candidates(None) if one.thing.id == first.id]
    if refusal := unused[0].remove() if unused else "active endpoints":
        assert "active endpoints" in refusal
        pytest.skip("trials of another run use the network: it cannot be removed")
    async with trial(tmp_path / "after") as (_, container):  # this process still has the old ID
        assert trial_network().id != first.id
        assert next(iter(networks_of(container))) == first.name
        assert f"-i {first.bridge} " in jumps()
        assert Path("/run/harbortrainer", first.bridge).exists()  # for runs of other users
        assert trial_network().id not in {one.thing.id for one in cleaning.candidates(None)}  # in use


async def test_trials_of_one_compose_task_reach_neither_each_other_nor_the_host(tmp_path: Path, host_port: int) -> None:
    compose = f"services:\n  main:\n    image: {PREBUILT}\n    command: [sleep, infinity]\n"
    toml = f'[environment]\ndocker_image = "{PREBUILT}"\n'
    task = write_task(
        tmp_path / "composed", dockerfile=None, toml=toml, files={"environment/docker-compose.yaml": compose}
    )
    a, b = (environment_of(task, RUN, kind=ComposeEnvironment) for _ in range(2))
    try:
        await asyncio.gather(a.start(force_build=False), b.start(force_build=False))
        (first, second) = (address_of(container) for container in containers(RUN))
        own = ((await a.exec("hostname -i")).stdout or "").split()
        assert len(own) == 1 and own[0] in (first, second)
        await a.exec(f"setsid {LISTEN} >/dev/null 2>&1 & until [ -e /listens ]; do sleep 0.05; done")
        assert await connects(a, own[0], 8000, OPEN_SEC)
        assert not await connects(b, own[0], 8000)
        reached = await asyncio.gather(*(connects(b, address, host_port) for address in addresses()))
        assert reached and not any(reached), dict(zip(addresses(), reached, strict=True))
    finally:
        await asyncio.gather(a.stop(delete=True), b.stop(delete=True))
