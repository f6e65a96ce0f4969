"""What a build leaves on the daemon: the image with its labels and nothing else."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images import builds
from harbortrainer.docker.images import image as images
from harbortrainer.docker.images.builds import ImageError, LateError
from harbortrainer.docker.images.steps import lock_file, locked
from harbortrainer.docker.keeping import ownership
from harbortrainer.durable.process import PID
from tests.support.docker_parts import BASE, make_base, prepare_images, write_task

pytestmark = pytest.mark.usefixtures("docker_ready")


async def test_no_image_stands_under_what_its_folder_held_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder changes between its digest and the build that reads it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    task = write_task(tmp_path / "edited", dockerfile=f"{BASE}ENV MARK={tmp_path}\nRUN false\n")
    dockerfile, build = task / "environment" / "Dockerfile", images.build
    reference = images.task_reference(task / "environment")

    def edited(*arguments: Any) -> None:
        dockerfile.write_text(f"{BASE}ENV MARK={tmp_path}\n")
        build(*arguments)

    monkeypatch.setattr(images, "build", edited)
    with pytest.raises(images.ImageError, match="was changed while its image was built"):
        await images.task_image(task / "environment", None)
    assert not images.is_here(reference)
    image = await images.task_image(task / "environment", None)
    assert image.reference != reference
    engine().remove_image(image.reference)


async def test_an_image_is_made_again_when_the_base_that_was_made_here_is_another(tmp_path: Path) -> None:
    base = "harbortrainer-test-own-base:latest"
    task = write_task(tmp_path / "based", dockerfile=f"FROM {base}\n")

    async def mark_of(mark: str) -> str:
        """What a task's image has of its base, in the next process after the base was made."""
        make_base(base, tmp_path / "base", mark)
        builds._made_here.cache_clear()
        reference = (await images.task_image(task / "environment", None)).reference
        made.append(reference)
        (value,) = [one for one in engine().inspect_image(reference)["Config"]["Env"] if one.startswith("MARK=")]
        return value

    made = list[str]()
    try:
        assert [await mark_of(mark) for mark in "aba"] == ["MARK=a", "MARK=b", "MARK=a"]
        assert len(set(made)) == 2, "a base that is the same again has its image"
    finally:
        for name in {*made, base}:
            engine().remove_image(name, force=True)


async def test_a_failed_build_is_named_and_a_good_one_is_labelled_and_marked_as_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MARK_SEC", 0.0)
    mark = tmp_path.as_posix()
    good = write_task(tmp_path / "good", dockerfile=f"{BASE}ENV MARK={mark}\n")
    bad = write_task(tmp_path / "bad", dockerfile=f"{BASE}RUN echo {mark} && exit 9\n")
    with pytest.raises(ImageError, match=r"cannot build .*bad"):
        await prepare_images([good, bad], run_id="test-builds")
    reference = images.task_reference(good / "environment")
    try:
        built = engine().inspect_image(reference)
        labels = built["Config"]["Labels"]
        assert labels[ownership.BUILT_FOR] == "test-builds" and labels[ownership.BUILT].startswith("20")
        assert (labels[ownership.LABEL], PID in labels) == ("1", False)
        await images.task_image(good / "environment", None)
        used = engine().inspect_image(reference)
        assert used["Metadata"]["LastTagTime"] > built["Metadata"]["LastTagTime"] and used["Id"] == built["Id"]
    finally:
        engine().remove_image(reference)


BUILDER = """
import asyncio, sys
from pathlib import Path
from tests.support.docker_parts import prepare_images

asyncio.run(prepare_images([Path(sys.argv[1])]))
"""


def _builds(command: str) -> list[str]:
    """Containers of the builder that run this."""
    return [container["Id"] for container in engine().containers(all=True) if command in container["Command"]]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def building(task: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that prepares the image of a task, and is gone afterwards."""
    builder = await asyncio.create_subprocess_exec(sys.executable, "-c", BUILDER, str(task), stderr=subprocess.PIPE)
    try:
        yield builder
    finally:
        with contextlib.suppress(ProcessLookupError):
            builder.kill()
        await builder.wait()


async def _told(builder: asyncio.subprocess.Process) -> bytes:
    async with asyncio.timeout(600):
        _, told = await builder.communicate()
    return told


@pytest.mark.nightly
async def test_first_steps_that_images_share_are_made_once(tmp_path: Path) -> None:
    """The daemon would make them for each of the builds that begin at the same time, in two processes."""
    first = f"{BASE}ENV MARK={tmp_path}\nRUN sleep 5 && date +%s%N > /shared\n"
    tasks = [write_task(tmp_path / f"t{n}", dockerfile=f"{first}RUN echo {n} > /own\n") for n in range(3)]
    async with building(tasks[2]) as other:
        await asyncio.gather(*map(images.images_of, tasks[:2]))
        await _told(other)
        assert other.returncode == 0
    made = [image for (image,) in await asyncio.gather(*map(images.images_of, tasks))]
    try:
        layers = [engine().inspect_image(image.base or image.reference)["RootFS"]["Layers"] for image in made]
        assert len({tuple(of_image[:-1]) for of_image in layers}) == 1
        assert len({of_image[-1] for of_image in layers}) == 3
    finally:
        for image in made:
            for name in filter(None, (image.reference, image.base)):
                engine().remove_image(name)


async def test_a_silent_build_does_not_hold_up_who_is_interrupted(tmp_path: Path) -> None:
    command = f"sleep {int.from_bytes(os.urandom(3)) + 100_000}"
    task = write_task(tmp_path / "silent", dockerfile=f"{BASE}RUN {command}\n")
    async with building(task) as builder:
        await _until(lambda: _builds(command) != [])
        builder.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in await _told(builder)
        await _until(lambda: _builds(command) == [])


async def test_a_silent_build_ends_at_its_limit(tmp_path: Path) -> None:
    command = f"sleep {int.from_bytes(os.urandom(3)) + 100_000}"
    limit = "[environment]\nbuild_timeout_sec = 2.0\n"
    task = write_task(tmp_path / "slow", dockerfile=f"{BASE}RUN {command}\n", toml=limit)
    async with building(task) as builder:
        told = await _told(builder)
        assert b"its image was not ready within 2 s ([environment] build_timeout_sec" in told
        await _until(lambda: _builds(command) == [])


@pytest.mark.nightly
async def test_a_late_build_frees_its_lock_at_once(tmp_path: Path) -> None:
    """Its thread kept the lock until the builder's next line: the next try waited for that, and was late, too."""
    command = f"sleep {int.from_bytes(os.urandom(3)) + 100_000}"
    task = write_task(tmp_path / "slow", dockerfile=f"{BASE}RUN {command}\n")
    with pytest.raises(LateError, match="not ready within 2 s"):
        await images.task_image(task / "environment", None, limit_sec=2.0)
    lock = lock_file(images.task_reference(task / "environment"))
    with contextlib.closing(lock):
        await _until(lambda: locked(lock))
    await _until(lambda: _builds(command) == [])
