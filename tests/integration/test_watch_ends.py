"""The watcher ends with its trainer, also one that is not root, whose watcher runs in a helper container."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.integrity.traces import PREFIX, Trace, Traces
from harbortrainer.docker.keeping import ownership
from tests.conftest import ROOT
from tests.support.another_user import another_user
from tests.support.docker_parts import a_run, remove_run, started, write_task
from tests.support.living_attacks import ATTACKS, VERIFIES, living
from tests.support.tiers import first

pytestmark = pytest.mark.usefixtures("docker_ready")
TRACEFS = Path("/sys/kernel/tracing")  # where a machine has it, if anywhere
DOCKERFILE = "FROM harbortrainer/tools:bookworm\nWORKDIR /app\n"
LIMIT_SEC = 60.0
TRAINER = """import asyncio, json, sys
from harbortrainer.docker.integrity.watch import watching
async def main():
    async with watching(sys.argv[1], sys.argv[2], (), bool) as sight:
        print("watching", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    seen = sight.seen
    print(json.dumps([seen.opened and len(seen.opened), seen.tampered, seen.unseen_memory]))
asyncio.run(main())
"""


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """tracefs there; gives the folder of its instances, which are the machine's."""
    subprocess.run(["mount", "-t", "tracefs", "tracefs", str(folder)], check=True)
    try:
        yield folder / "instances"
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def instances(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "tracefs"
    folder.mkdir()
    with mounted(folder) as found:
        yield found


@pytest.fixture
def run_id() -> Iterator[str]:
    run = a_run("watch-ends")
    yield run
    remove_run(run)


@pytest.fixture
async def environment(tmp_path: Path, run_id: str) -> AsyncIterator[DockerEngineEnvironment]:
    task = write_task(tmp_path / "task", dockerfile=DOCKERFILE)
    async with started(task, run_id) as one:
        await one.exec(living(ATTACKS["attach"][0]), user="root")
        await one.close_agent_phase(final=True)
        yield one


@contextmanager
def trainer(environment: DockerEngineEnvironment, run_id: str, user: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that watches the container until it gets a line."""
    command = [*user, sys.executable, "-c", TRAINER, environment.container, run_id]
    pipe, variables = subprocess.PIPE, {**os.environ, "PYTHONPATH": f"{ROOT}/src"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=variables) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == "watching\n", process.stderr.read()
            yield process
        finally:
            process.kill()


def helpers(run_id: str) -> list[str]:
    """Containers of the run that are no trial's."""
    found = engine().containers(all=True, filters={"label": f"{ownership.RUN_ID}={run_id}"})
    return [
        one["Id"] for one in found if not one["Labels"][ownership.TRIAL] and one["HostConfig"]["NetworkMode"] == "none"
    ]


def watchers(trainer: int) -> list[int]:
    """PIDs of the trainer's watchers beside it."""
    tasks = Path(f"/proc/{trainer}/task").glob("*/children")
    return [int(pid) for file in tasks for pid in file.read_text().split()]


def until(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT_SEC
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.mark.parametrize("user", first(1, ["root", "another"]))
async def test_a_trainer_of_any_user_watches(environment: DockerEngineEnvironment, run_id: str, user: str) -> None:
    def watched() -> list[object]:
        with trainer(environment, run_id, another_user() if user == "another" else []) as process:
            assert bool(helpers(run_id)) == (user == "another")
            verified = subprocess.run(["docker", "exec", environment.container, "python3", "-c", VERIFIES], check=False)
            assert verified.returncode == 0
            out, error = process.communicate("\n", timeout=LIMIT_SEC)
            assert not error, error
        return json.loads(out)

    opened, tampered, unseen = await asyncio.to_thread(watched)
    assert opened and tampered == ["ptrace", "signal"] and unseen is False  # which stops what it attaches to
    await asyncio.to_thread(until, lambda: not helpers(run_id))


@pytest.mark.parametrize("user", first(1, ["root", "another"]))
async def test_no_watcher_and_no_instance_outlives_a_killed_trainer(
    environment: DockerEngineEnvironment, run_id: str, instances: Path, user: str
) -> None:
    def kill() -> None:
        before = set(instances.iterdir())
        with trainer(environment, run_id, another_user() if user == "another" else []) as process:
            running = watchers(process.pid)
            made = {one for one in instances.iterdir() if one.name.startswith(PREFIX)} - before
            assert made and bool(running) != bool(helpers(run_id))
            process.send_signal(signal.SIGKILL)
            until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in running) and not helpers(run_id))
            until(lambda: not any(one.exists() for one in made))

    await asyncio.to_thread(kill)


def test_instances_of_killed_programs_are_removed_and_those_of_living_ones_are_not(instances: Path) -> None:
    stale = instances / f"{PREFIX}0-stale"
    living = Traces()
    stale.mkdir()
    others = Traces()
    try:
        assert not stale.exists() and Path(living._folder).exists()
    finally:
        living.close()
        others.close()
    assert not Path(living._folder).exists()


def test_programs_that_begin_at_once_are_all_traced() -> None:
    program = f"from {Traces.__module__} import Traces\nfor _ in range(12): one = Traces(); print(one.why); one.close()"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src"}
    with ThreadPoolExecutor(4) as pool:
        command = [sys.executable, "-c", program]
        ended = [
            pool.submit(subprocess.run, command, env=environment, capture_output=True, text=True) for _ in range(4)
        ]
    assert [(one.result().stdout, one.result().stderr) for one in ended] == [("\n" * 12, "")] * 4


def test_a_trace_goes_on_when_tracefs_of_the_machine_is_unmounted() -> None:
    with mounted(TRACEFS):
        traces = Traces()
    try:
        assert traces.why == ""
        trace = traces.lend()
        assert isinstance(trace, Trace)
        trace.follow({os.getpid()})
        child = subprocess.Popen(["true"])
        child.wait()
        assert trace.take() == [] and child.pid in trace.forked
        traces.give_back(trace)
    finally:
        traces.close()
