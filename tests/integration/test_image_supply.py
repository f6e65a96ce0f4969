"""Images that are made while trials run, with a real daemon: kinds of broken images, killed and other processes."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harbortrainer.docker.checks.host import DockerHost, maker
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images import image as images
from harbortrainer.docker.images.supply import ImageSupply
from harbortrainer.learning.treatment import UNSUPPLIED
from tests.support.docker_parts import BASE, write_task
from tests.support.own_daemon import OwnDaemon

pytestmark = pytest.mark.usefixtures("docker_ready")
# What is wrong with Dockerfiles of public corpora, and a word of the builder's answer.
BROKEN = {
    "copies": ("COPY no/such.tar /app/\n", "COPY failed"),
    "command": ("RUN echo some words && exit 9\n", "some words"),
    "colours": ("RUN echo in red >&2 && exit 9\n", "| in red"),
    "syntax": ("FORM nothing\n", "unknown instruction"),
    "package": ("RUN apt-get install -y no-such-package-at-all\n", "Unable to locate package"),
    "user": ("USER nobody-there\nRUN true\n", "nobody-there"),
}
MAKER = """
import asyncio, logging, sys
from pathlib import Path
from harbortrainer.docker.images.image import images_of

async def main():
    await asyncio.gather(*(images_of(Path(one)) for one in sys.argv[1:]))

logging.basicConfig(level=logging.INFO, format="%(message)s")
asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def supplying(n_tasks: int) -> AsyncIterator[ImageSupply]:
    async with ImageSupply(maker(DockerHost(), "", False, print), 2, 600.0, print, n_tasks) as supply:
        yield supply


async def lacking(supply: ImageSupply, task: Path) -> str:
    async with supply.supplied(task) as why:
        return why


def made_of(folder: Path, n: int) -> list[Path]:
    """Tasks with new images."""
    return [write_task(folder / f"new{i}", dockerfile=f"{BASE}RUN echo {folder}/{i} > /made\n") for i in range(n)]


def remove(tasks: list[Path]) -> None:
    for reference in {images.task_reference(task / "environment") for task in tasks}:
        if images.is_here(reference):
            engine().remove_image(reference, force=True)  # a killed process has left a container of it


async def test_each_kind_of_broken_image_is_named_with_the_builders_words(tmp_path: Path) -> None:
    bad = {name: write_task(tmp_path / name, dockerfile=BASE + lines) for name, (lines, _) in BROKEN.items()}
    (good,) = made_of(tmp_path, 1)
    try:
        async with supplying(30) as supply:
            found = dict(zip(bad, await asyncio.gather(*(lacking(supply, one) for one in bad.values())), strict=True))
            assert await lacking(supply, good) == ""
        for name, (_, words) in BROKEN.items():
            assert found[name].startswith(UNSUPPLIED) and words in found[name], found[name]
            assert "Removing" not in found[name] and found[name].isprintable()
    finally:
        remove([good])


@pytest.mark.nightly
async def test_processes_that_need_the_same_images_build_each_once_and_a_killed_one_costs_no_built_image(
    tmp_path: Path,
) -> None:
    tasks = made_of(tmp_path, 6)
    slow = write_task(tmp_path / "slow", dockerfile=f"{BASE}RUN sleep {100_000 + os.getpid()} # {tmp_path}\n")

    async def process(*folders: Path) -> asyncio.subprocess.Process:
        command = [sys.executable, "-c", MAKER, *map(str, folders)]
        return await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)

    reference = images.task_reference(tasks[0] / "environment")
    try:
        killed = await process(tasks[0], slow)
        while not await asyncio.to_thread(images.is_here, reference):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        killed.kill()
        both = [await process(*tasks), await process(*reversed(tasks))]
        said = "".join([(await one.communicate())[1].decode() for one in (killed, *both)])
        assert [one.returncode for one in both] == [0, 0], said
        assert [said.count(f"from {task / 'environment'}\n") for task in tasks] == [1] * 6
    finally:
        remove(tasks)


async def test_a_daemon_that_is_restarted_during_builds_costs_only_time(tmp_path: Path, own_docker: OwnDaemon) -> None:
    first, last = made_of(tmp_path, 2)
    slow = write_task(tmp_path / "slow", dockerfile=f"{BASE}RUN sleep 5 # {tmp_path}\n")
    async with supplying(30) as supply:
        assert await lacking(supply, first) == ""
        made = engine().inspect_image(images.task_reference(first / "environment"))["Id"]
        waiting = asyncio.create_task(lacking(supply, slow))
        while not await asyncio.to_thread(lambda: engine().containers()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.to_thread(own_docker.stop)
        await asyncio.to_thread(own_docker.start)
        assert (await waiting, await lacking(supply, last)) == ("", "")
        assert engine().inspect_image(images.task_reference(first / "environment"))["Id"] == made
