"""What can go from a daemon, and in which order; told with a daemon that only lists."""

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from harbortrainer.docker.keeping import ownership
from harbortrainer.docker.keeping.cleaning import candidates, tidy
from harbortrainer.durable.process import PID
from tests.support.fake_engine import FakeEngine, use_engine

DAY = 86400.0
DEAD = ownership.labels("gone") | {PID: f"{os.getpid()}:1"}
SHARED = {ownership.LABEL: "1"}


class Images(FakeEngine):
    """Shared images by age in days; `owned`: containers; `tagged`: clock time of the last tag."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **ages: float) -> None:
        self.known = [image(name, age) for name, age in ages.items()]
        self.owned: list[dict[str, Any]] = []
        self.busy: list[str] = []
        self.tagged: dict[str, float] = {}
        self.removed: list[str] = []
        use_engine(monkeypatch, self)

    def containers(self, filters: Any = None, **_: Any) -> list[dict[str, Any]]:
        return self.owned if filters else [{"ImageID": f"id-{name}"} for name in self.busy]

    def images(self, name: str = "", **_: Any) -> list[dict[str, Any]]:
        return [] if name else self.known

    def remove_image(self, name: str) -> None:
        self.removed.append(name)

    def inspect_image(self, image: str) -> dict[str, Any]:
        tagged = datetime.fromtimestamp(self.tagged.get(image.removeprefix("id-"), 0.0), UTC)
        return {"Metadata": {"LastTagTime": tagged.isoformat()}}


def image(name: str, age: float, labels: Mapping[str, str] = SHARED) -> dict[str, Any]:
    return {"Id": f"id-{name}", "RepoTags": [name], "Labels": labels, "Created": time.time() - age * DAY}


def container(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"Id": f"id-{name}", "Names": [f"/{name}"], "Labels": labels, "Created": 0.0}


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
    images.owned = [container("mine", ownership.labels("r")), container("dead", DEAD)]
    images.known.append(image("built", 0, DEAD))
    found = candidates(30.0)
    assert [one.thing.name for one in found] == ["dead", "built", "old"]
    assert found[0].why == "run gone is dead" and found[2].why == "not used for 40.0 days"


def test_an_image_without_a_name_goes_when_it_cannot_be_one_that_is_being_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = Images(monkeypatch, fresh=0)
    assert names(None) == []
    images.known = [image("gone", 1) | {"RepoTags": ["<none>:<none>"]}]
    assert names(None) == ["id-gone"]


def test_before_a_run_dead_things_and_unused_images_go(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images(monkeypatch, used=50, unused=40)
    images.tagged["used"] = time.time()
    gone = "removed from Docker: 1 task image without a name or not used for 30 days"
    assert tidy() == [gone] and images.removed == ["unused"]
    images.known, images.owned = [], [container("a", DEAD), container("b", DEAD)]
    assert tidy() == ["removed from Docker: 2 containers, networks, volumes or images of dead runs"]
