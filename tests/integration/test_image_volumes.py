"""A VOLUME of an image: work there is graded, also by a second verification, and no cause of a reward hides there."""

import shutil
from pathlib import Path

import pytest

from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images import volumes
from harbortrainer.docker.images.image import task_reference
from harbortrainer.docker.images.layers import layers
from tests.support.plain_container import both_ways, product_trial
from tests.support.task_folder import write_task
from tests.support.tiers import first

pytestmark = pytest.mark.usefixtures("docker_ready")
DOCKERFILE = """FROM harbortrainer/tools:bookworm
COPY check.py /data/tool/check.py
VOLUME ["/data", "/var/lib/more"]
WORKDIR /app
"""
CHECK = 'import sys\nsys.exit(open("/data/hello.txt").read() != "Hello\\n")\n'
TEST = "python3 /data/tool/check.py && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
WORK, UNASKED = "echo Hello > /data/hello.txt\n", "echo '#' > /usr/lib/python3/dist-packages/more.pth\n"
HIDDEN = "echo > /data/tool/check.py\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make_task(folder: Path, *, solved: bool) -> Path:
    task = write_task(
        folder / "task", dockerfile=DOCKERFILE, solve=WORK, test=TEST, files={"environment/check.py": CHECK}
    )
    (task / "instruction.md").write_text("Write Hello and a newline into /data/hello.txt.\n")
    if not solved:
        shutil.rmtree(task / "solution")
    return task


@pytest.mark.parametrize("solved", first(1, [True, False]))
async def test_work_in_a_volume_is_graded(tmp_path: Path, solved: bool) -> None:
    trial = await product_trial(make_task(tmp_path, solved=solved), WORK + UNASKED)
    assert trial.reward == 1, trial.fault
    assert list((tmp_path / "trials").glob("*/causes.json")), "it was verified a second time"
    image = task_reference(tmp_path / "task" / "environment")
    ids = [engine().inspect_image(name)["Id"] for name in (image, volumes.without_volumes(image))]
    assert ids[0] != ids[1] and layers(ids[0]) == layers(ids[1]), "it takes no room of its own"


@pytest.mark.parametrize("solved", first(1, [True, False]))
async def test_a_cause_in_a_volume_earns_nothing(tmp_path: Path, solved: bool) -> None:
    plain, trial = await both_ways(make_task(tmp_path, solved=solved), HIDDEN)
    assert (plain, trial.reward) == (1, 0)


async def test_where_docker_keeps_the_volume_work_there_is_graded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with containerd's image store: Docker refuses an image whose layers it does not know."""
    task, archive = make_task(tmp_path, solved=True), volumes._archive
    unknown = {"RootFS": {"Layers": [f"sha256:{'0' * 64}"]}}
    monkeypatch.setattr(volumes, "_archive", lambda found, name: archive({**found, **unknown}, name))
    dockerfile = task / "environment" / "Dockerfile"
    dockerfile.write_text(f"{dockerfile.read_text()}ENV X={tmp_path}\n")  # an image of its own
    trial = await product_trial(task, WORK + UNASKED)
    assert trial.reward == 1, trial.fault
    assert "has a VOLUME, and Docker cannot make the image without it" in caplog.text
