"""The shapes that tasks come in, in our environment: the oracle earns its reward."""

import asyncio
from pathlib import Path

import pytest

from scripts.bench.shapes import SHAPES, write_shape
from scripts.bench.task_shapes import rewards_of, run_oracle
from src.rollout.docker.removal import drain
from src.rollout.environment import environment_config
from tests.integration.docker_parts import containers

pytestmark = pytest.mark.usefixtures("docker_ready")
RUN = "test-task-shapes"


async def test_the_oracle_earns_the_reward_on_every_shape(tmp_path: Path) -> None:
    """Rewards of each shape, in our environment."""
    limit = asyncio.Semaphore(4)

    async def earned(name: str) -> object:
        async with limit:
            task = write_shape(name, tmp_path)
            return rewards_of(await run_oracle(task, environment_config("docker", {}, task, RUN)))

    rewards = dict(zip(SHAPES, await asyncio.gather(*map(earned, SHAPES)), strict=True))
    assert rewards == {name: {"reward": 1} for name in SHAPES} | {"reward-json": {"reward": 1, "style": 0.5}}
    await drain()
    assert containers(RUN) == []
    made = list((tmp_path / "trials").glob("artifacts-*/artifacts/**/file"))
    assert [path.read_text() for path in made] == ["kept\n"]
