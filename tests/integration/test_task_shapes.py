"""The shapes that tasks come in, in our environment: the oracle earns its reward, the real agent has a terminal."""

import asyncio
from pathlib import Path

import pytest

from harbortrainer.docker.keeping.cleaning import drain
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.tasks.folders import digest
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor.environment import environment_config
from harbortrainer.venues.harbor.grading import CAUSES
from tests.support.docker_parts import a_run, containers
from tests.support.oracle import rewards_of, run_oracle
from tests.support.shapes import INSTALLING, SHAPES, write_shape
from tests.support.task_folder import write_task
from tests.support.tiers import few
from tests.support.trial_parts import SOLVE, local_host, request

pytestmark = pytest.mark.usefixtures("docker_ready")
RUN = a_run("test-task-shapes")


@pytest.mark.parametrize("names", few(SHAPES, 8))
async def test_the_oracle_earns_the_reward_on_every_shape(tmp_path: Path, names: list[str]) -> None:
    """Rewards of each shape, in our environment."""
    limit = asyncio.Semaphore(4)

    async def earned(name: str) -> object:
        async with limit:
            task = write_shape(name, tmp_path)
            return rewards_of(await run_oracle(task, environment_config("docker", {}, task, RUN)))

    rewards = dict(zip(names, await asyncio.gather(*map(earned, names)), strict=True))
    assert rewards == {name: {"reward": 1} | ({"style": 0.5} if name == "reward-json" else {}) for name in names}
    await drain()
    assert containers(RUN) == []
    assert not list((tmp_path / "trials").glob(f"*/{CAUSES}")), "honest work was taken for an attack"
    made = list((tmp_path / "trials").glob("artifacts-*/artifacts/**/file"))
    assert [path.read_text() for path in made] == ["kept\n"] * names.count("artifacts")


@pytest.mark.nightly
async def test_tmux_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    trajectory = await _scripted(write_shape("no-tmux", tmp_path))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    assert "tmux" in trajectory.detail


async def test_a_verifier_that_cannot_install_is_no_failure_of_the_policy(tmp_path: Path) -> None:
    """The oracle of this shape earned 1 above; without its sources the same script writes reward 0."""
    task = write_task(tmp_path / "no-sources", test=INSTALLING.format(address="https://nowhere.invalid"))
    trajectory = await _scripted(task)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.VERIFIER_ERROR, None)
    assert "could not install curl: E: Unable to locate package curl" in trajectory.detail
    (reward,) = (tmp_path / "trials").glob("*/verifier/reward.txt")
    assert reward.read_text() == "0\n"


async def test_the_agent_works_in_sh_where_there_is_no_bash(tmp_path: Path) -> None:
    trajectory = await _scripted(write_shape("no-bash", tmp_path))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0)


async def _scripted(path: Path) -> Trajectory:
    """One trial by the real agent with the policy that solves the task."""
    host, _ = local_host(SOLVE)
    return await host.run(request(Task(path.name, path, digest(path)), path.parent))
