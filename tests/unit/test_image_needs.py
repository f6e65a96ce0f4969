"""What a corpus needs, by what was made here."""

from pathlib import Path
from typing import Any

import pytest

from harbortrainer.docker.images import inventory, layers
from harbortrainer.docker.images.inventory import names_of
from tests.support.fake_engine import FakeEngine, use_engine
from tests.support.task_folder import BASE, write_task

GB = 1000**3


class Has(FakeEngine):
    """The images of these tasks."""

    def __init__(self, *tasks: Path) -> None:
        self._names = [name for task in tasks for name in names_of(task)]

    def images(self, **_: Any) -> list[dict[str, Any]]:
        return [{"RepoTags": self._names}]

    def inspect_image(self, image: str) -> dict[str, Any]:
        return {"RootFS": {"Layers": ["base", "first", image]}}

    def history(self, _: str) -> list[dict[str, Any]]:
        return [{"Size": size, "CreatedBy": ""} for size in (GB // 2, GB, GB)]


def test_bytes_and_hours_come_from_images_that_were_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [write_task(tmp_path / f"t{n}", dockerfile=f"{BASE}RUN first\nRUN second {n}\n") for n in range(10)]
    use_engine(monkeypatch, Has(*tasks[:4]))
    start = "task images: 10 for 10 tasks, 6 missing"
    assert inventory.needs_note(tasks, 2, 4) == [
        "tasks whose images are missing here: 6 to build (t4, t5, t6, …)",
        f"{start}; bytes and hours are known once 3 of them were made here",
    ]
    for n, task in enumerate(tasks[:4]):
        layers.note_made(names_of(task)[0], f"id {n}", 600.0)
    with layers._file().open("a") as file:
        file.write('["killed while it was writ')
    assert inventory.needs_note(tasks, 2, 4)[1:] == [
        f"{start}; by the 4 that were made here, about 7 GB in all (2 GB shared, 0.5 GB each) and 0.5 hours, "
        "2 at once; images_gb must be above 4 for the 4 tasks ahead"
    ]
    use_engine(monkeypatch, Has(*tasks))
    assert inventory.needs_note(tasks, 2, 4) == []


def test_tasks_that_share_an_image_count_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [write_task(tmp_path / f"t{n}", dockerfile=f"{BASE}RUN some {n % 2}\n") for n in range(6)]
    use_engine(monkeypatch, Has())
    [_, line] = inventory.needs_note(tasks, 2, 4)
    assert line.startswith("task images: 2 for 6 tasks, 2 missing; ")
