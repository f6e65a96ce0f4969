"""What can go from a daemon, and in which order; told with a daemon that only lists."""

import os
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from harbortrainer.docker.keeping import cleaning, ownership
from harbortrainer.docker.keeping.cleaning import OwnedObject, candidates, tidy
from harbortrainer.durable.process import PID

DAY = 86400.0
DEAD = ownership.labels("gone") | {PID: f"{os.getpid()}:1"}
SHARED = {ownership.LABEL: "1"}


class Images:
    """Shared images by age in days; `tagged`: clock time of the last tag."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **ages: float) -> None:
        now = time.time()
        self.things = [OwnedObject("image", name, SHARED, now - age * DAY, f"id-{name}") for name, age in ages.items()]
        self.busy: list[str] = []
        self.tagged: dict[str, float] = {}
        self.removed: list[str] = []
        monkeypatch.setattr(cleaning, "engine", lambda: self)
        monkeypatch.setattr(cleaning, "owned_objects", lambda: iter(self.things))
        monkeypatch.setattr(cleaning, "reap", lambda run_id: [])
        monkeypatch.setattr(OwnedObject, "remove", lambda thing: self.removed.append(thing.name))

    def containers(self, **_: Any) -> list[dict[str, str]]:
        return [{"ImageID": f"id-{name}"} for name in self.busy]

    def inspect_image(self, image: str) -> dict[str, Any]:
        tagged = datetime.fromtimestamp(self.tagged.get(image.removeprefix("id-"), 0.0), UTC)
        return {"Metadata": {"LastTagTime": tagged.isoformat()}}


def names(older_than_days: float | None) -> list[str]:
    return [one.thing.name for one in candidates(older_than_days)]


def test_images_go_by_their_last_tag_and_never_while_a_container_is_made_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = Images(monkeypatch, new=2, old=40, older=50, used=60, busy=70)
    images.tagged["used"] = time.time() - 1.5 * DAY
    images.busy = ["busy"]
    assert names(30.0) == ["older", "old"]
    assert names(None) == []
    assert names(1.0) == ["older", "old", "new", "used"]


def test_what_the_dead_own_comes_first_and_the_living_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images(monkeypatch, old=40)
    mine = OwnedObject("container", "mine", ownership.labels("r"), 0.0)
    images.things = [mine, OwnedObject("container", "dead", DEAD), *images.things, OwnedObject("image", "built", DEAD)]
    found = candidates(30.0)
    assert [one.thing.name for one in found] == ["dead", "built", "old"]
    assert found[0].why == "run gone is dead" and found[2].why == "not used for 40.0 days"


def test_an_image_without_a_name_goes_when_it_cannot_be_one_that_is_being_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = Images(monkeypatch, fresh=0)
    assert names(None) == []
    images.things = [OwnedObject("image", "sha256:1", SHARED, time.time() - DAY, "sha256:1")]
    assert names(None) == ["sha256:1"]


def test_before_a_run_dead_things_and_unused_images_go(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images(monkeypatch, used=50, unused=40)
    images.tagged["used"] = time.time()
    gone = "removed from Docker: 1 task image without a name or not used for 30 days"
    assert tidy() == [gone] and images.removed == ["unused"]
    monkeypatch.setattr(cleaning, "reap", lambda run_id: ["a", "b"])
    images.things = []
    assert tidy() == ["removed from Docker: 2 containers, networks, volumes or images of dead runs"]
