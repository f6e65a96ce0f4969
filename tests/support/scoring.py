"""Generated tasks graded in real containers of their own images, before and after their oracle."""

import io
import tarfile
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import docker

PARALLEL = 4
LABEL = "harbortrainer.test"
# the verifier as Harbor runs it, the oracle, and the verifier again
SCORE_TWICE = """
grade() { rm -f /logs/verifier/*; (/tests/test.sh) > /dev/null 2>&1; cat /logs/verifier/reward.txt; }
grade; (bash /solution/solve.sh); grade
"""


@contextmanager
def engine(mark: str) -> Iterator[docker.DockerClient]:
    """A client; containers that `score_twice` leaves under this mark are removed at the end."""
    client = docker.from_env()
    yield client
    for container in client.containers.list(all=True, filters={"label": f"{LABEL}={mark}"}, ignore_removed=True):
        container.remove(force=True)
    client.close()


@contextmanager
def images_of(client: docker.DockerClient, tasks: Iterable[Path]) -> Iterator[dict[str, str]]:
    """Task name -> image; tasks with the same environment share one. They are removed afterwards.

    Tags and labels are random, and the steps of the builds stay: another process may build the same Dockerfiles now.
    """
    mine, tags = uuid.uuid4().hex[:8], dict[str, str]()  # by Dockerfile
    found: dict[str, str] = {}
    for task in tasks:
        dockerfile = (task / "environment" / "Dockerfile").read_text()
        if dockerfile not in tags:
            tags[dockerfile] = f"{LABEL}:{task.name}-{mine}"
            client.images.build(path=str(task / "environment"), tag=tags[dockerfile], rm=True, labels={LABEL: mine})
        found[task.name] = tags[dockerfile]
    yield found
    for tag in tags.values():
        client.images.remove(tag, noprune=True)


def score_twice(client: docker.DockerClient, image: str, task: Path, mark: str) -> list[str]:
    """Rewards before and after the oracle has worked in one container."""
    container = client.containers.create(image, ["sleep", "600"], network_mode="none", init=True, labels={LABEL: mark})
    try:
        container.put_archive("/", _archive(task / "tests", task / "solution"))
        container.start()
        output = container.exec_run(["bash", "-c", SCORE_TWICE]).output
        assert isinstance(output, bytes)
        return output.decode().split()
    finally:
        container.remove(force=True)


def scores(
    client: docker.DockerClient, images: dict[str, str], tasks: Iterable[Path], mark: str
) -> dict[str, list[str]]:
    """Task name -> its rewards by `score_twice`."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        found = pool.map(lambda task: (task.name, score_twice(client, images[task.name], task, mark)), tasks)
        return dict(found)


def _archive(*folders: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in folders:
            tar.add(folder, arcname=folder.name)
    return buffer.getvalue()
