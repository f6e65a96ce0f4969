"""What a build leaves on the daemon: the image with its labels and nothing else."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from docker.errors import ImageNotFound

from src.errors import UserError
from src.rollout.docker import owner
from src.rollout.docker.engine import engine
from src.rollout.docker.images import content_digest, prepare_images
from tests.integration.docker_parts import BASE, write_task

pytestmark = pytest.mark.usefixtures("docker_ready")
STAGES = "FROM harbortrainer/base:bookworm AS made\nRUN echo {mark} > /made\nRUN echo {mark}2 > /left\n"


def images_with(mark: str) -> list[list[str]]:
    """Tags of all images, layers of the builder included, that a command with this word has made."""
    found = []
    for image in engine().images(all=True):
        with contextlib.suppress(ImageNotFound):  # another test's
            newest = engine().history(image["Id"])[0]
            if mark in newest["CreatedBy"]:
                found.append(image["RepoTags"] or [])
    return found


async def test_stages_and_failures_leave_no_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mark = tmp_path.as_posix()
    stages = STAGES.format(mark=mark)
    good = write_task(tmp_path / "good", dockerfile=f"{stages}{BASE}COPY --from=made /made /made\nENV MARK={mark}\n")
    bad = write_task(tmp_path / "bad", dockerfile=f"{stages}{BASE}RUN echo {mark} && exit 9\n")
    with pytest.raises(UserError, match="task bad: cannot build"):
        await prepare_images([good, bad], run_id="test-builds")
    reference = f"harbortrainer/task:{content_digest(good / 'environment')[:12]}"
    try:
        assert await asyncio.to_thread(images_with, f"RUN echo {mark}") == []
        assert await asyncio.to_thread(images_with, f"echo {mark}") == []
        labels = engine().inspect_image(reference)["Config"]["Labels"]
        assert labels[owner.BUILT_FOR] == "test-builds" and labels[owner.BUILT].startswith("20")
        assert (labels[owner.LABEL], owner.PID in labels) == ("1", False)
    finally:
        engine().remove_image(reference)
