"""What the work of a verification wrote, which a rewarded trial asks for twice."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from harbortrainer.docker.integrity import again
from harbortrainer.docker.integrity.watch import Seen


def test_what_the_work_wrote_is_looked_for_once_for_each_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[Seen]()

    def readers(seen: Seen, _: object) -> Any:
        looks.append(seen)
        return SimpleNamespace(written_by=lambda _: set(seen.writers))

    monkeypatch.setattr(again, "Readers", readers)
    found = SimpleNamespace(layer=SimpleNamespace(in_image=lambda _: False), targets={}, contents=[])
    environment: Any = SimpleNamespace(phases=SimpleNamespace(found=found), task=None)
    ours, first = again.Again(environment), Seen({}, writers={"/tests/a": (5,)})
    second = Seen({}, writers={"/tests/b": (5,)})
    for seen in (first, replace(first, sockets=("tcp 80",)), second):
        assert ours.written_by_work(seen) == set(seen.writers)
    assert looks == [first, second]
