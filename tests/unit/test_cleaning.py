"""What can go from a daemon, and in which order; told with a daemon that only lists."""

import os
import time
from types import SimpleNamespace

import pytest

from src.process import PID
from src.rollout.docker import cleaning, owner
from src.rollout.docker.belongings import Belonging
from src.rollout.docker.cleaning import GB, candidates, tidy

DAY = 86400.0
DEAD = owner.labels("gone") | {PID: f"{os.getpid()}:1"}
SHARED = {owner.LABEL: "1"}


class Images:
    """Shared images by age in days; `noted` and `in_use`: as this machine knows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **ages: float) -> None:
        now = time.time()
        self.things = [Belonging("image", name, SHARED, now - age * DAY, f"id-{name}") for name, age in ages.items()]
        self.busy: list[str] = []
        self.in_use: list[str] = []
        self.noted: dict[str, float] = {}
        self.removed: list[str] = []
        client = SimpleNamespace(containers=lambda **_: [{"ImageID": f"id-{name}"} for name in self.busy])
        monkeypatch.setattr(cleaning, "engine", lambda: client)
        monkeypatch.setattr(cleaning, "belongings", lambda: iter(self.things))
        monkeypatch.setattr(cleaning, "is_in_use", lambda name: name in self.in_use)
        monkeypatch.setattr(cleaning, "last_use", lambda name: self.noted.get(name, 0.0))
        monkeypatch.setattr(cleaning, "forget_uses", lambda name: None)
        monkeypatch.setattr(cleaning, "reap", lambda run_id: [])
        monkeypatch.setattr(Belonging, "remove", lambda thing: self.removed.append(thing.name))


def names(older_than_days: float | None, max_gb: float | None = None, **sizes_gb: float) -> list[str]:
    sizes = {("image", f"id-{name}"): int(size * GB) for name, size in sizes_gb.items()}
    return [one.thing.name for one in candidates(older_than_days, max_gb, sizes)]


def test_images_go_by_their_last_use_and_never_while_somebody_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images(monkeypatch, new=1, old=40, older=50, used=60, busy=70, alive=80)
    images.noted["used"] = time.time() - DAY
    images.busy, images.in_use = ["busy"], ["alive"]
    assert names(30.0) == ["older", "old"]
    assert names(None) == []
    assert names(0.5) == ["older", "old", "new", "used"]


def test_the_least_recently_used_go_until_the_others_are_small_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images(monkeypatch, a=4, b=3, c=2, d=1)
    sizes = {"a": 1.0, "b": 2.0, "c": 1.0, "d": 1.0}
    assert names(None, 5.0, **sizes) == []
    assert names(None, 4.0, **sizes) == ["a"]
    assert names(None, 3.0, **sizes) == ["a", "b"]
    assert names(3.5, 4.0, **sizes) == ["a"]  # what is too old counts
    images.busy = ["a"]
    assert names(None, 4.0, **sizes) == ["b"]


def test_what_the_dead_own_comes_first_and_the_living_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images(monkeypatch, old=40)
    mine = Belonging("container", "mine", owner.labels("r"), 0.0)
    images.things = [mine, Belonging("container", "dead", DEAD), *images.things, Belonging("image", "built", DEAD)]
    found = candidates(30.0, None, {})
    assert [one.thing.name for one in found] == ["dead", "built", "old"]
    assert found[0].why == "run gone is dead" and found[2].why == "not used for 40.0 days"


def test_an_image_without_a_name_goes_when_it_cannot_be_one_that_is_being_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = Images(monkeypatch, fresh=0)
    assert names(None) == []
    images.things = [Belonging("image", "sha256:1", SHARED, time.time() - DAY, "sha256:1")]
    assert names(None) == ["sha256:1"]


def test_before_a_run_only_images_that_this_machine_knows_go(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images(monkeypatch, known=40, unknown=50)
    assert tidy() == [] and images.removed == []
    images.noted["known"] = time.time() - 40 * DAY
    assert tidy() == ["removed from Docker: 1 task images unused for 30 days"] and images.removed == ["known"]
    monkeypatch.setattr(cleaning, "reap", lambda run_id: ["a", "b"] if run_id == "r" else [])
    images.noted = {}
    assert tidy("r") == ["removed from Docker: 2 containers, networks, volumes or images of dead runs"]
