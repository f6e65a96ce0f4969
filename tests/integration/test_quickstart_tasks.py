"""Every quickstart task, in real containers of its own image: its oracle scores 1, doing nothing scores 0."""

import asyncio
import io
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest

from harbortrainer.docker.cleaning import drain

TASKS = Path("datasets/quickstart")
NAMES = sorted(path.parent.name for path in TASKS.glob("*/task.toml"))
PARALLEL = 4
LABEL = "harbortrainer.test"
# the verifier as Harbor runs it, the oracle, and the verifier again
SCORE_TWICE = """
grade() { rm -f /logs/verifier/*; (/tests/test.sh) > /dev/null 2>&1; cat /logs/verifier/reward.txt; }
grade; (bash /solution/solve.sh); grade
"""


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    for container in client.containers.list(
        all=True, filters={"label": f"{LABEL}=quickstart-tasks"}, ignore_removed=True
    ):
        container.remove(force=True)
    client.close()


@pytest.fixture(scope="module")
def images(client: docker.DockerClient) -> Iterator[dict[str, str]]:
    """Task name -> image; tasks with the same environment share one. They are removed afterwards."""
    tags: dict[str, str] = {}  # by Dockerfile
    for name in NAMES:
        dockerfile = (TASKS / name / "environment" / "Dockerfile").read_text()
        if dockerfile not in tags:
            tags[dockerfile] = f"{LABEL}:{name}"
            client.images.build(path=str(TASKS / name / "environment"), tag=tags[dockerfile], rm=True)
    yield {name: tags[(TASKS / name / "environment" / "Dockerfile").read_text()] for name in NAMES}
    for tag in tags.values():
        client.images.remove(tag)


def archive(*folders: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in folders:
            tar.add(folder, arcname=folder.name)
    return buffer.getvalue()


def score_twice(client: docker.DockerClient, image: str, task: Path) -> list[str]:
    """Rewards before and after the oracle has worked in one container."""
    container = client.containers.create(
        image, ["sleep", "600"], network_mode="none", init=True, labels={LABEL: "quickstart-tasks"}
    )
    try:
        container.put_archive("/", archive(task / "tests", task / "solution"))
        container.start()
        output = container.exec_run(["bash", "-c", SCORE_TWICE]).output
        assert isinstance(output, bytes)
        return output.decode().split()
    finally:
        container.remove(force=True)


def test_nothing_scores_0_and_every_oracle_scores_1(client: docker.DockerClient, images: dict[str, str]) -> None:
    assert len(NAMES) == 48
    assert len(set(images.values())) <= 8
    with ThreadPoolExecutor(PARALLEL) as pool:
        scores = dict(
            zip(NAMES, pool.map(lambda name: score_twice(client, images[name], TASKS / name), NAMES), strict=True)
        )
    assert scores == {name: ["0", "1"] for name in NAMES}


async def harbor_reward(folder: Path, task: str, agent: str) -> float | None:
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
    from harbor.trial.trial import Trial

    config = TrialConfig(
        task=TaskConfig(path=TASKS / task),
        trial_name=f"quickstart-{task}-{agent}",
        trials_dir=folder,
        agent=AgentConfig(name=agent),
        environment=EnvironmentConfig(import_path="harbortrainer.docker.environment:DockerEngineEnvironment"),
    )
    result = await (await Trial.create(config)).run()
    assert result.exception_info is None
    rewards = result.verifier_result.rewards if result.verifier_result else None
    return rewards["reward"] if rewards else None


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
async def test_harbor_itself_grades_the_tasks(tmp_path: Path, agent: str, reward: float) -> None:
    tasks = ("create-1", "permissions-2", "count-3", "search-5")
    try:
        assert await asyncio.gather(*(harbor_reward(tmp_path, task, agent) for task in tasks)) == [reward] * len(tasks)
    finally:
        await drain()
