"""Every quickstart task, in real containers of its own image: its oracle scores 1, doing nothing scores 0."""

import asyncio
from pathlib import Path

import pytest

from tests.support.scoring import engine, images_of, scores
from tests.support.tiers import few

TASKS = Path("datasets/quickstart")
NAMES = sorted(path.parent.name for path in TASKS.glob("*/task.toml"))


@pytest.mark.parametrize("names", few(NAMES, 8))
def test_nothing_scores_0_and_every_oracle_scores_1(docker_ready: str, names: list[str]) -> None:
    tasks = [TASKS / name for name in names]
    assert len(NAMES) == 48
    with engine("quickstart-tasks") as client, images_of(client, tasks) as images:
        assert len(set(images.values())) <= 8
        assert scores(client, images, tasks, "quickstart-tasks") == {name: ["0", "1"] for name in names}


async def harbor_reward(folder: Path, task: str, agent: str) -> float | None:
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
    from harbor.trial.trial import Trial

    config = TrialConfig(
        task=TaskConfig(path=TASKS / task),
        trial_name=f"quickstart-{task}-{agent}",
        trials_dir=folder,
        agent=AgentConfig(name=agent),
        environment=EnvironmentConfig(import_path="harbortrainer.docker.box.environment:DockerEngineEnvironment"),
    )
    result = await (await Trial.create(config)).run()
    assert result.exception_info is None
    rewards = result.verifier_result.rewards if result.verifier_result else None
    return rewards["reward"] if rewards else None


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
async def test_harbor_itself_grades_the_tasks(tmp_path: Path, agent: str, reward: float) -> None:
    tasks = ("create-1", "permissions-2", "count-3", "search-5")
    assert await asyncio.gather(*(harbor_reward(tmp_path, task, agent) for task in tasks)) == [reward] * len(tasks)
