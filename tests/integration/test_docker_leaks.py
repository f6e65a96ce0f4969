"""Whatever ends a trial or a process, no container stays."""

import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from src.rollout.docker import container, environment, owner
from src.rollout.docker.engine import engine
from src.rollout.docker.reaper import reap
from src.rollout.docker.removal import drain
from tests.integration.docker_parts import containers, environment_of, run_trial, write_task

pytestmark = pytest.mark.usefixtures("docker_ready")
RUN = "test-leaks"
VICTIM = """
import asyncio, sys
from pathlib import Path
from tests.integration.docker_parts import environment_of

async def main():
    environments = [environment_of(Path(sys.argv[1]), "test-victim") for _ in range(4)]
    await asyncio.gather(*(e.start(False) for e in environments))
    print("up", flush=True)
    await environments[0].exec("sleep 1000")

asyncio.run(main())
"""


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
    async with asyncio.timeout(30):
        while not (await asyncio.to_thread(_runs, "sleep 1000")):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await _cancel(trial)
    await drain()
    assert containers(RUN) == []


def _runs(command: str) -> bool:
    return any(
        command in " ".join(process)
        for name in containers(RUN)
        for process in engine().top(name, "-eo pid,args").get("Processes") or []
    )


async def test_a_killed_process_is_cleaned_up_after_by_the_next_run(tmp_path: Path) -> None:
    task = write_task(tmp_path / "victim")
    mine = environment_of(task, RUN)
    await mine.start(force_build=False)
    stranger = engine().create_container(
        "harbortrainer/base:bookworm", command="true", labels={"harbortrainer.pid": "1:1"}
    )
    victim = await asyncio.create_subprocess_exec(sys.executable, "-c", VICTIM, str(task), stdout=subprocess.PIPE)
    try:
        assert victim.stdout is not None and await victim.stdout.readline() == b"up\n"
        reap()
        assert len(containers("test-victim")) == 4  # its owner lives
        victim.kill()
        await victim.wait()
        reap()
        assert containers("test-victim") == []
        assert (await mine.exec("echo unharmed")).stdout == "unharmed\n"
        assert engine().inspect_container(stranger["Id"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            victim.kill()
        engine().remove_container(stranger["Id"])
        await mine.stop(delete=True)
        await drain()


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
    await drain()


def test_labels_of_a_network_are_reaped_too() -> None:
    network = engine().create_network("test-leaks-network", labels=owner.labels(f"{RUN}-network"))
    assert "test-leaks-network" in reap(f"{RUN}-network")
    assert not engine().networks(ids=[network["Id"]])
