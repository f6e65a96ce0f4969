"""Whatever ends a trial or a process, no container stays."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from docker.errors import APIError

from harbortrainer.docker.box import container, environment
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.keeping import cleaning, ownership
from harbortrainer.docker.keeping.cleaning import drain, owned_objects, reap
from harbortrainer.docker.keeping.removals import removals
from tests.support.docker_parts import (
    BASE,
    a_run,
    containers,
    environment_of,
    prepare_images,
    reward,
    run_trial,
    stopping_container,
    write_task,
)
from tests.support.shapes import SHAPES

pytestmark = pytest.mark.usefixtures("docker_ready")
RUN = a_run("test-leaks")
VICTIMS = a_run("test-victim")
N_VICTIMS = 6
COMPOSE = """
services:
  main:
    networks: [inner]
    volumes: ["data:/data"]
  side:
    build: ./side
    command: sleep infinity
networks:
  inner: {}
volumes:
  data: {}
"""
COMPOSE_VICTIM = """
import asyncio, sys
from pathlib import Path
from tests.support.docker_parts import run_trial

asyncio.run(run_trial(Path(sys.argv[1]), sys.argv[2]))
"""
VICTIM = """
import asyncio, sys
from pathlib import Path
from tests.support.docker_parts import environment_of

async def main():
    task, run_id, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    environments = [environment_of(task, run_id) for _ in range(count)]
    await asyncio.gather(*(e.start(False) for e in environments))
    print("up", flush=True)
    await environments[0].exec("sleep 1000")

asyncio.run(main())
"""
ENDED = VICTIM.replace(
    "import environment_of", "import environment_of; from harbortrainer.docker.keeping.removals import removals"
)
ENDED = (
    ENDED.partition('    print("up"')[0]
    + """
    with removals().starting():
        async with removals().turn():  # the only one while a container starts
            await asyncio.gather(*(e.stop(True) for e in environments))
            print("ended", flush=True)
            await asyncio.sleep(1000)

asyncio.run(main())
"""
)


async def _cancel(work: asyncio.Task[object]) -> None:
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


async def test_cancelled_while_the_container_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(spec: container.ContainerSpec) -> None:
        loop.call_soon_threadsafe(entered.set)
        time.sleep(0.5)  # the cancellation comes first, then the container
        container.start_container(spec)

    monkeypatch.setattr(environment, "start_container", slow)
    trial = asyncio.create_task(run_trial(write_task(tmp_path / "starting"), RUN))
    await entered.wait()
    await _cancel(trial)
    await drain()
    assert containers(RUN) == []


async def test_cancelled_while_a_command_runs(tmp_path: Path) -> None:
    task = write_task(tmp_path / "running", solve="sleep 1000\n")
    trial = asyncio.create_task(run_trial(task, RUN))
    async with asyncio.timeout(600):
        while not (await asyncio.to_thread(_runs, "sleep 1000")):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await _cancel(trial)
    await drain()
    assert containers(RUN) == []


def _runs(command: str, run_id: str = RUN) -> bool:
    return any(command in " ".join(process) for name in containers(run_id) for process in _processes(name))


def _processes(container: str) -> list[list[str]]:
    try:
        return engine().top(container, "-eo pid,args").get("Processes") or []
    except APIError:  # it is not up yet, or on its way out
        return []


@contextlib.asynccontextmanager
async def _process(script: str, *arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *map(str, arguments), stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        await _kill(process)


async def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def test_a_killed_trainer_is_cleaned_up_after_by_the_next_run(tmp_path: Path) -> None:
    task = write_task(tmp_path / "victim")
    await prepare_images([task])
    stranger = engine().create_container(
        "harbortrainer/base:bookworm", command="true", labels={"harbortrainer.pid": "1:1"}
    )
    try:
        async with _process(VICTIM, task, VICTIMS, N_VICTIMS) as victim, _process(VICTIM, task, RUN, 1) as neighbour:
            for process in (victim, neighbour):
                assert process.stdout is not None and await process.stdout.readline() == b"up\n"
            reap(RUN)  # as a copy of the neighbour's run directory would
            assert (len(containers(VICTIMS)), len(containers(RUN))) == (N_VICTIMS, 1)  # their owners live
            await _kill(victim)
            assert len(await asyncio.to_thread(reap)) >= N_VICTIMS
            assert (len(containers(VICTIMS)), len(containers(RUN))) == (0, 1)
            assert reward(await run_trial(task, f"{RUN}-new")) == 1
            await _kill(neighbour)
            await asyncio.to_thread(reap)
            assert containers(RUN) == []
        assert engine().inspect_container(stranger["Id"])
    finally:
        engine().remove_container(stranger["Id"])
        await drain()


def test_a_container_in_which_dockers_own_commands_are_stopped_is_removed() -> None:
    with stopping_container(run := a_run("test-stops")):
        began = time.monotonic()
        reap()
        assert time.monotonic() - began < 30 and containers(run) == []


@pytest.mark.nightly
async def test_removals_wait_behind_a_start_and_a_killed_trainers_are_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a container starts, ended ones are removed one at a time; after a kill the reaper takes them."""
    task, at_once, most = write_task(tmp_path / "ended"), 0, 0
    remove = cleaning.remove_container

    def counted(name: str) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        remove(name)
        at_once -= 1

    monkeypatch.setattr(cleaning, "remove_container", counted)
    environments = [environment_of(task, RUN) for _ in range(4)]
    await asyncio.gather(*(one.start(False) for one in environments))
    with removals().starting():
        for one in environments:
            await one.stop(delete=True)
        async with asyncio.timeout(600):
            while containers(RUN):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert most == 1, "the others wait"
    await drain()
    assert containers(RUN) == []
    async with _process(ENDED, task, f"{RUN}-ended", 4) as victim:
        assert victim.stdout is not None and await victim.stdout.readline() == b"ended\n"
        assert victim.returncode is None and len(containers(f"{RUN}-ended")) == 4
        await _kill(victim)
    await asyncio.to_thread(reap)
    assert containers(f"{RUN}-ended") == []


@pytest.mark.nightly
async def test_what_compose_made_for_a_killed_trainer_goes_too(tmp_path: Path) -> None:
    side = {"environment/docker-compose.yaml": COMPOSE, "environment/side/Dockerfile": BASE}
    task = write_task(tmp_path / "composed", solve="sleep 1000\n", files=side)
    run_id = f"{RUN}-compose"
    async with _process(COMPOSE_VICTIM, task, run_id) as victim:
        async with asyncio.timeout(600):
            while not (await asyncio.to_thread(_runs, "sleep 1000", run_id)):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        mine = [thing for thing in owned_objects() if thing.labels.get(ownership.RUN_ID) == run_id]
        assert Counter(thing.kind for thing in mine) == {"container": 2, "network": 2, "volume": 1, "image": 2}
        await _kill(victim)
        assert {thing.name for thing in mine} <= set(await asyncio.to_thread(reap))
        assert not [thing for thing in owned_objects() if thing.labels.get(ownership.RUN_ID) == run_id]


async def test_reaping_a_run_takes_all_of_it_and_nothing_else(tmp_path: Path) -> None:
    one, other = (environment_of(write_task(tmp_path / name), f"{RUN}-{name}") for name in ("one", "other"))
    await asyncio.gather(one.start(False), other.start(False))
    await asyncio.to_thread(reap, f"{RUN}-one")
    assert containers(f"{RUN}-one") == [] and len(containers(f"{RUN}-other")) == 1
    for environment_ in (one, other):
        await environment_.stop(delete=True)
    await drain()


async def test_an_engine_that_is_gone_ends_the_trial_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = write_task(tmp_path / "gone")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/gone.sock")
    result = await run_trial(task, RUN)
    assert result.exception_info is not None and "Connection" in result.exception_info.exception_traceback
    assert result.verifier_result is None
    await drain(patience_sec=0)


def test_what_the_daemon_does_not_let_go_is_told_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    client, labels, network = engine(), ownership.labels(f"{RUN}-held"), f"{RUN}-held"
    client.create_network(network, labels=labels)
    volume = client.create_volume(f"{RUN}-volume", labels=labels)["Name"]
    holder = client.create_container(
        "harbortrainer/base:bookworm",
        "sleep 600",
        networking_config=client.create_networking_config({network: client.create_endpoint_config()}),
        host_config=client.create_host_config(init=True),
    )
    try:
        client.start(holder["Id"])
        removed = reap(f"{RUN}-held")  # and what dead processes have left, if any
        assert volume in removed and network not in removed
        assert f"network {network} cannot be removed" in caplog.text
    finally:
        client.remove_container(holder["Id"], force=True)
        assert network in reap(f"{RUN}-held")


def test_labels_of_a_network_are_reaped_too() -> None:
    network = engine().create_network(f"{RUN}-network", labels=ownership.labels(f"{RUN}-network"))
    assert f"{RUN}-network" in reap(f"{RUN}-network")
    assert not engine().networks(ids=[network["Id"]])


async def test_every_container_of_a_compose_task_is_labelled_its_separate_verifiers_too(tmp_path: Path) -> None:
    run_id = a_run("test-labels")  # a name of its own too: another process may run a task of this shape
    task = write_task(tmp_path / run_id, **SHAPES["compose-separate-verifier"])
    # read while they happen: the daemon remembers the last 256 events only
    events = engine().events(since=int(time.time()), decode=True, filters={"type": "container", "event": "create"})
    seen = asyncio.create_task(asyncio.to_thread(list, events))
    assert reward(await run_trial(task, run_id)) == 1
    events.close()
    names = {event["Actor"]["Attributes"]["name"]: event["Actor"]["Attributes"] for event in await seen}
    mine = {name: labels.get(ownership.RUN_ID) for name, labels in names.items() if name.startswith(task.name)}
    assert len(mine) == 3 and set(mine.values()) == {run_id}
