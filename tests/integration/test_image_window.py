"""Task images within a bound, with a real daemon of the test's own."""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harbortrainer.docker.checks.host import DockerHost, maker
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images import image as images
from harbortrainer.docker.images import origins
from harbortrainer.docker.images.builds import CACHED, REPOSITORY
from harbortrainer.docker.images.supply import ImageSupply
from harbortrainer.docker.images.window import GB, ImageWindow
from harbortrainer.docker.keeping import cleaning
from tests.support.docker_parts import BASE, a_run, up, write_task
from tests.support.own_daemon import OwnDaemon
from tests.support.small_disk import daemon_on_small_disk

pytestmark = pytest.mark.usefixtures("docker_ready")
BASE_IMAGE = BASE.split()[1]
MB = 1000**2
EACH = 20 * MB  # of an image, beside the base


@pytest.fixture
def daemon(own_docker: OwnDaemon) -> Iterator[None]:
    yield
    for image in engine().images(name=REPOSITORY):
        for name in image["RepoTags"]:
            engine().remove_image(name)


def sized(folder: Path, n: int, more: str = "") -> list[Path]:
    """Tasks with images of EACH."""
    fill = f"RUN head -c {EACH} /dev/urandom > /made\n"
    return [write_task(folder / f"t{i}", dockerfile=f"{BASE}RUN echo {folder}/{i}\n{fill}{more}") for i in range(n)]


def here(tasks: Sequence[Path]) -> list[str]:
    return [task.name for task in tasks if images.is_here(images.task_reference(task / "environment"))]


def on_disk() -> int:
    """Bytes of the daemon's layers, as the daemon counts them."""
    return engine().df()["LayersSize"]


async def supplied(supply: ImageSupply, task: Path) -> str:
    async with supply.supplied(task) as why:
        return why


@pytest.mark.usefixtures("daemon")
async def test_the_disk_is_never_above_the_window_by_more_than_an_image_and_images_come_again(tmp_path: Path) -> None:
    tasks = sized(tmp_path, 7)
    base, most = on_disk(), 0
    window = ImageWindow((base + 3.5 * EACH) / GB)
    async with ImageSupply(maker(DockerHost(), "", False, print), 2, 600.0, print, 30, window) as supply:
        order = [*tasks, tasks[0]]
        for place, task in enumerate(order):
            supply.expect(order[place : place + 3])
            async with supply.supplied(task) as why:
                assert not why and task.name in here(tasks)
                most = max(most, await asyncio.to_thread(on_disk))
    assert base + 2 * EACH < most <= base + 4.5 * EACH, (most - base) / EACH
    assert images.is_here(BASE_IMAGE)


@pytest.mark.usefixtures("daemon")
async def test_what_others_have_stays(tmp_path: Path) -> None:
    """A container of anybody, another process's trial, an image with a name of somebody else's."""
    tasks = sized(tmp_path, 4)
    contained, held, named, free = tasks
    made = [await images.images_of(task) for task in tasks]
    contained_by = engine().create_container(made[0][0].reference, "true")
    engine().tag(made[2][0].reference, "somebody/else", "v1")
    window = ImageWindow(0.001)
    with contextlib.closing(ImageWindow("auto").hold(held)):
        new = write_task(tmp_path / "new", dockerfile=f"{BASE}RUN echo new\n")
        assert window.make_room(new, 1, [], [contained, held, named, free]) == (False, {free})
    assert here(tasks) == [contained.name, held.name, named.name] and images.is_here(BASE_IMAGE)
    assert window.make_room(new, 1, [], [contained, held, named])[1] == {held}
    engine().remove_container(contained_by)
    engine().remove_image("somebody/else:v1")


@pytest.mark.nightly
@pytest.mark.usefixtures("daemon")
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are shared where this process may restore their files")
async def test_the_network_that_later_trials_use_keeps_no_image(tmp_path: Path) -> None:
    """The second trial's image has a holder; where a trial uses it, the image goes after that trial."""
    tasks, window, run = sized(tmp_path, 3), ImageWindow(0.001), a_run("window")
    new = write_task(tmp_path / "new", dockerfile=f"{BASE}RUN echo new\n")
    for task in tasks[:2]:
        async with up(task, run):
            pass
    assert len(engine().containers()) == 1
    async with up(tasks[2], run):
        assert window.make_room(new, 1, [tasks[2]], tasks[:2])[1] == {tasks[0]}
    assert window.make_room(new, 1, [], tasks)[1] == {*tasks[1:]} and not engine().containers(all=True)


@pytest.mark.nightly
@pytest.mark.usefixtures("daemon")
async def test_a_name_that_a_killed_push_has_left_keeps_no_image(tmp_path: Path) -> None:
    (task,) = sized(tmp_path, 1)
    (made,) = await images.images_of(task)
    engine().tag(made.reference, "127.0.0.1:9/some/tasks", "digest")
    new = write_task(tmp_path / "new", dockerfile=f"{BASE}RUN echo new\n")
    assert ImageWindow(0.001).make_room(new, 1, [], [task])[1] == set()
    origins.set_origins("127.0.0.1:9/some/tasks", None)
    try:
        assert ImageWindow(0.001).make_room(new, 1, [], [task])[1] == {task}
    finally:
        origins.set_origins(None, None)


@pytest.mark.usefixtures("daemon")
async def test_what_failed_builds_leave_goes_first(tmp_path: Path) -> None:
    (good,), (bad,) = sized(tmp_path, 1), sized(tmp_path / "bad", 1, "RUN false\n")
    before = on_disk()
    await images.images_of(good)
    with pytest.raises(images.ImageError):
        await images.images_of(bad)
    left = engine().images(name=REPOSITORY)
    assert sum(any(tag.startswith(CACHED) for tag in one["RepoTags"]) for one in left) == 1
    assert any(one.thing.name.startswith(CACHED) for one in cleaning.candidates(0.0))
    window = ImageWindow((before + 1.5 * EACH) / GB)
    assert window.make_room(bad, 1, [], [good]) == (True, set())
    assert on_disk() < before + 1.2 * EACH and here([good])


@pytest.mark.nightly
async def test_a_disk_that_is_smaller_than_the_images_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = sized(tmp_path, 6)
    with daemon_on_small_disk(BASE_IMAGE, 300) as own:
        monkeypatch.setenv("DOCKER_HOST", own.host)
        window = ImageWindow("auto")
        async with ImageSupply(maker(DockerHost(), "", False, print), 2, 600.0, print, 30, window) as supply:
            supply.expect(tasks)
            assert [await supplied(supply, task) for task in tasks] == [""] * 6
            assert 1 <= len(here(tasks)) < 6
