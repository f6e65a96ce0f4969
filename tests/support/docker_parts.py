"""Tasks, trials and environments for the Docker tests."""

import asyncio
import contextlib
import logging
import os
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.task.config import TaskConfig as HarborTaskConfig
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.models.trial.paths import TrialPaths
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.box.first_process import end_all
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images.image import image_notes, images_of
from harbortrainer.docker.integrity import processes, watch
from harbortrainer.docker.keeping import cleaning, ownership
from harbortrainer.durable.process import PID
from harbortrainer.venues.harbor.environment import environment_config
from tests.support.task_folder import BASE as BASE
from tests.support.task_folder import SOLVE as SOLVE
from tests.support.task_folder import TEST as TEST
from tests.support.task_folder import write_task as write_task


async def run_trial(task: Path, run_id: str, agent: str = "oracle") -> TrialResult:
    config = TrialConfig(
        task=TaskConfig(path=task),
        trial_name=f"{task.name}-{uuid.uuid4().hex[:6]}",
        trials_dir=task.parent / "trials",
        agent=AgentConfig(name=agent),
        environment=environment_config("docker", {}, task, run_id),
    )
    return await (await Trial.create(config)).run()


def reward(result: TrialResult) -> float:
    assert result.exception_info is None, result.exception_info.exception_traceback
    assert result.verifier_result is not None and result.verifier_result.rewards is not None
    return result.verifier_result.rewards["reward"]


def environment_of[E: BaseEnvironment](
    task: Path, run_id: str, kind: type[E] = DockerEngineEnvironment, **kwargs: Any
) -> E:
    """The environment alone, not started."""
    kwargs.setdefault("network_policy", NetworkPolicy(network_mode=NetworkMode.PUBLIC))
    return kind(
        environment_dir=task / "environment",
        environment_name=task.name,
        session_id=f"{task.name}__env",
        trial_paths=TrialPaths(task.parent / "trial"),
        task_env_config=HarborTaskConfig.model_validate_toml((task / "task.toml").read_text()).environment,
        logger=logging.getLogger("test"),
        run_id=run_id,
        **kwargs,
    )


@asynccontextmanager
async def up(task: Path, run_id: str, **kwargs: Any) -> AsyncIterator[DockerEngineEnvironment]:
    """The environment before its agent's phase; at the end it is gone."""
    environment = environment_of(task, run_id, **kwargs)
    await environment.start(force_build=False)
    try:
        yield environment
    finally:
        await environment.stop(delete=True)
        await cleaning.drain()


@asynccontextmanager
async def started(task: Path, run_id: str, *, once: str = "", **kwargs: Any) -> AsyncIterator[DockerEngineEnvironment]:
    """The environment in its agent's phase, with a trial's folder of its own; removed at the end.

    `once`: the phase begins when this command succeeds, as when the image's entrypoint has done its part.
    """
    environment = environment_of(task, run_id, **kwargs)
    environment.trial_paths = TrialPaths(task.parent / uuid.uuid4().hex)
    await environment.start(force_build=False)
    try:
        if once:
            await environment.exec(f"until {once}; do sleep 0.05; done", user="root", timeout_sec=600)
        await environment.open_agent_phase()
        yield environment
    finally:
        await environment.stop(delete=True)


async def prepare_images(
    tasks: Sequence[Path],
    run_id: str = "",
    say: Callable[[str], object] = lambda _: None,
    *,
    prebuilt_only: bool = False,
) -> int:
    """Make the images of tasks at the same time; returns how many this process made. Raises ImageError."""
    ended = await asyncio.gather(*(images_of(task, run_id, prebuilt_only) for task in tasks), return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException):
            raise error
    made = [images for images in ended if not isinstance(images, BaseException)]
    for task, images in zip(tasks, made, strict=True):
        for _, line in image_notes(task.name, images):
            say(line)
    return len({image.reference for images in made for image in images if image.fresh})


def a_run(name: str) -> str:
    """A run's id that no other process of the tests has, and no earlier one had."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def remove_run(run_id: str) -> None:
    """Remove the run's containers, its network holders too, and nothing that others have left.

    `reap` takes what any dead process left; a test in another process may wait for just that.
    """
    for container in engine().containers(all=True, filters={"label": f"{ownership.RUN_ID}={run_id}"}):
        cleaning.remove_container(container["Id"])


def let_processes_end(patch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: a container is not started again because the agent's processes take long to end."""
    patch.setattr(processes, "SIGNAL_SEC", 300.0)
    patch.setattr(processes, "SEEN_SEC", 300.0)


def containers(run_id: str) -> list[str]:
    """IDs of the run's containers, without those that only hold a network namespace."""
    marks = [f"{ownership.RUN_ID}={run_id}", ownership.TRIAL]
    return [container["Id"] for container in engine().containers(all=True, filters={"label": marks})]


@contextlib.contextmanager
def stopping_container(run_id: str) -> Iterator[None]:
    """A container of a process that has ended, which stops what Docker starts there; some come in meanwhile."""
    stops = "while :; do kill -STOP -1; sleep 0.01; done & exec sleep infinity"
    marks = ownership.labels(run_id) | {PID: "1:1"}
    made = engine().create_container("harbortrainer/base:bookworm", ["bash", "-c", stops], labels=marks)["Id"]
    engine().start(made)
    with contextlib.ExitStack() as commands:
        for _ in range(6):  # Docker waits for those that were stopped
            command = commands.enter_context(subprocess.Popen(["docker", "exec", made, "true"]))
            with pytest.raises(subprocess.TimeoutExpired):
                command.wait(0.5)
        try:
            yield
        finally:
            end_all(made)


def make_base(name: str, folder: Path, mark: str) -> None:
    """An image that no registry knows, with MARK in its environment; the same one for the same mark."""
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(f"{BASE}LABEL of={folder}\nENV MARK={mark}\n")
    list(engine().build(path=str(folder), tag=name, decode=True))


def watcher() -> int:
    """The PID of this process' watcher of verifications; other tests had daemons of their own."""
    found = watch._watchers[os.getpid(), os.environ.get("DOCKER_HOST")]  # pyright: ignore[reportPrivateUsage]
    return found._program._process.pid  # pyright: ignore
