"""Images of tasks, made ahead of their trials: order, faults, retries, what ends a run."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from docker.errors import DockerException

from harbortrainer.docker.images import supply
from harbortrainer.docker.images.builds import ImageError, LateError
from harbortrainer.docker.images.supply import ImageSupply
from harbortrainer.errors import EnvironmentFault
from harbortrainer.learning.treatment import PASSING, UNSUPPLIED
from tests.support.virtual_time import in_virtual_time


class Builder:
    """Makes images at once; `faults`: what a task's next tries raise, the last one for ever."""

    def __init__(self, faults: dict[str, Any] | None = None) -> None:
        self.faults, self.made, self.most, self._at_once = faults or {}, list[str](), 0, 0

    async def __call__(self, task: Path) -> bool:
        self._at_once += 1
        self.most = max(self.most, self._at_once)
        await asyncio.sleep(0)
        self._at_once -= 1
        faults = self.faults.get(task.name, [None])
        fault = faults[0] if len(faults) == 1 else faults.pop(0)
        if fault is not None:
            raise fault
        self.made.append(task.name)
        return True


def supplying(builder: Builder, n: int = 1, say: Callable[[str], object] = print, tasks: int = 9) -> ImageSupply:
    return ImageSupply(builder, n, 1000.0, say, tasks)


async def lacking(images: ImageSupply, name: str) -> str:
    async with images.supplied(Path(name)) as why:
        return why


async def test_what_trials_wait_for_is_made_first_and_the_rest_in_its_order() -> None:
    builder = Builder()
    async with supplying(builder) as images:
        images.expect([Path("a"), Path("b"), Path("c")])
        assert await asyncio.gather(lacking(images, "z"), lacking(images, "c")) == ["", ""]
        assert builder.made[:3] == ["a", "z", "c"]
        assert await lacking(images, "b") == "" and len(builder.made) == 4


async def test_while_other_images_are_made_such_a_fault_is_the_tasks_and_not_for_ever() -> None:
    gone = ImageError("curl: (6) Could not resolve host: gone.example")
    builder = Builder({"a": [gone]})
    async with supplying(builder) as images:
        refused = asyncio.create_task(lacking(images, "a"))
        while not refused.done():
            await lacking(images, f"other {len(builder.made)}")
        assert refused.result().startswith(PASSING)
        builder.faults.clear()
        assert await lacking(images, "a") == ""


async def test_a_fault_that_one_task_alone_has_is_the_tasks() -> None:
    gone = ImageError("curl: (6) Could not resolve host: gone.example")
    builder = Builder({"a": [gone]})
    async with supplying(builder) as images:
        assert (await lacking(images, "a")).startswith(PASSING)


async def test_a_daemon_that_is_away_is_waited_for_by_one_task_too() -> None:
    async with supplying(Builder({"a": [DockerException("away")] * 6 + [None]})) as images:
        assert await lacking(images, "a") == ""


async def test_a_fault_that_several_tasks_have_is_waited_for() -> None:
    away = ImageError("dial tcp: no such host")
    builder = Builder({name: [away] * 6 + [None] for name in "ab"})
    async with supplying(builder, 2) as images:
        assert await asyncio.gather(*(lacking(images, name) for name in "ab")) == ["", ""]


async def test_an_image_that_is_late_is_tried_once_more() -> None:
    late = LateError("not ready within 1 s")
    async with supplying(Builder({"a": [late, None], "b": [late]})) as images:
        assert await lacking(images, "a") == "" and await lacking(images, "b") == f"{UNSUPPLIED}not ready within 1 s"


class Shelf:
    """Has room for `size` images; removes as it is told."""

    def __init__(self, size: int, builder: Builder) -> None:
        self.size, self.builder, self.here, self.most = size, builder, set[Path](), 0

    def hold(self, task: Path) -> contextlib.ExitStack:
        return contextlib.ExitStack()

    def make_room(
        self, task: Path, making: int, held: Collection[Path], ahead: Sequence[Path]
    ) -> tuple[bool, set[Path]]:
        assert making >= 1 and not {*held} & {*ahead}
        gone = set[Path]()
        for one in [*reversed(ahead)]:
            if len(self.here) < self.size:
                break
            gone |= {one} & self.here
            self.here -= {one}
        if fits := len(self.here) < self.size or task in self.here:
            self.here.add(task)
        self.most = max(self.most, len(self.here))
        return fits, gone


async def test_images_needed_last_go_and_come_again() -> None:
    builder = Builder()
    shelf = Shelf(2, builder)
    async with ImageSupply(builder, 1, 1000.0, print, 9, shelf) as images:
        images.expect([Path("a"), Path("b"), Path("c"), Path("d")])
        assert await lacking(images, "a") == "" and await lacking(images, "b") == ""
        images.expect([Path("c"), Path("d")])
        assert await lacking(images, "d") == "" and shelf.here == {Path("c"), Path("d")}
        assert await lacking(images, "a") == "" and Path("c") in shelf.here, "c comes before d"
        assert builder.made == ["a", "b", "c", "d", "a"] and shelf.most == 2


async def test_a_task_waits_for_the_end_of_trials_whose_images_leave_no_room() -> None:
    builder, lines = Builder(), list[str]()
    shelf = Shelf(1, builder)
    async with ImageSupply(builder, 2, 1000.0, lines.append, 9, shelf) as images:
        async with images.supplied(Path("a")):
            waits = asyncio.create_task(lacking(images, "b"))
            while not lines:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert not waits.done() and shelf.here == {Path("a")} and lines == [supply.TOO_SMALL]
        assert await waits == "" and shelf.here == {Path("b")}


async def test_a_run_ends_when_more_than_a_third_of_its_first_tasks_have_no_image() -> None:
    bad = {str(n): [ImageError(f"no {n}")] for n in range(11)}
    async with supplying(Builder(bad), tasks=2000) as images:
        with pytest.raises(EnvironmentFault, match=r"(?s)task 0: image: no 0\n.*and 6 more\n11 of the first 21 tasks"):
            await asyncio.gather(*(lacking(images, str(n)) for n in range(30, 40)), *(lacking(images, n) for n in bad))


async def test_later_faults_end_no_run() -> None:
    bad = {str(n): [ImageError(f"no {n}")] for n in range(50)}
    async with supplying(Builder(bad), tasks=2000) as images:
        await asyncio.gather(*(lacking(images, f"good {n}") for n in range(30)))
        assert all(await asyncio.gather(*(lacking(images, n) for n in bad)))


def test_progress_is_said_while_trials_wait() -> None:
    lines = list[str]()

    async def make(task: Path) -> bool:
        await asyncio.sleep(1.5 * supply.SAY_SEC if task.name == "b" else 0)
        return True

    async def work() -> None:
        async with ImageSupply(make, 1, 900.0, lines.append, 3) as images:
            images.expect([Path("a"), Path("b"), Path("c")])
            assert await lacking(images, "b") == ""

    in_virtual_time(work())
    assert lines == [
        "task images: those of 1 of the next 3 tasks are ready, 1 under way (b for 30 s); about 1 min for the others; "
        "1 tasks wait for theirs"
    ]


async def test_trials_start_and_images_are_made_while_others_are_pushed_and_a_run_ends_after_the_last_push() -> None:
    builder, let, pushed = Builder(), asyncio.Event(), list[list[str]]()

    async def push() -> None:
        await let.wait()
        pushed.append([*builder.made])

    async with ImageSupply(builder, 1, 1000.0, print, 9, push=push) as images:
        async with asyncio.timeout(9.0):
            assert [await lacking(images, name) for name in "ab"] == ["", ""]
        assert images.progress.endswith("are ready, 0 under way") and not pushed
        let.set()
    assert pushed == [["a", "b"]] * 2


async def test_an_image_that_is_being_pushed_stays_and_leaves_no_room_until_it_is_pushed() -> None:
    builder, let, lines = Builder(), asyncio.Event(), list[str]()
    shelf = Shelf(1, builder)

    async with ImageSupply(builder, 1, 1000.0, lines.append, 9, shelf, push=lambda: settle(let)) as images:
        assert await lacking(images, "a") == ""
        waits = asyncio.create_task(lacking(images, "b"))
        while not lines:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not waits.done() and shelf.here == {Path("a")}
        let.set()
        assert await waits == "" and shelf.here == {Path("b")}


async def settle(let: asyncio.Event) -> None:
    await let.wait()


async def test_no_more_images_are_made_at_once_after_an_outage_either() -> None:
    """All tasks ahead met the daemon's end; their pauses ended at the same time."""
    builder = Builder({str(n): [DockerException("gone"), None] for n in range(8)})
    async with supplying(builder, 2) as images:
        images.expect([Path(str(n)) for n in range(8)])
        assert await asyncio.gather(*(lacking(images, str(n)) for n in range(8))) == [""] * 8
    assert builder.most == 2
