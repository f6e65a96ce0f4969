"""The footprint of a task's solution where the daemon fails while it is learned."""

import pytest
import requests
from docker.errors import APIError

from harbortrainer.docker.integrity import footprint as footprints
from harbortrainer.docker.integrity.asked import Footprint
from tests.support.fake_engine import FakeEngine, use_engine

FOOTPRINT = Footprint(frozenset({"/usr/bin/jq"}), frozenset({"/app/out"}), frozenset({80}), frozenset({"redis"}))


@pytest.mark.parametrize("error", [requests.ConnectionError("away"), APIError("no")])
async def test_a_daemon_that_fails_says_nothing_about_a_solution(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Without its footprint what the policy had to install is unasked for until the run ends."""
    failures = [error] * 3  # of four tries

    async def learn() -> Footprint:
        if failures:
            raise failures.pop()
        return FOOTPRINT

    key = f"daemon {error}"
    use_engine(monkeypatch, FakeEngine())
    with pytest.raises(type(error)):
        await footprints.learned(key, "task", learn)
    assert await footprints.learned(key, "task", learn) == FOOTPRINT, "the second of two tries"
    assert footprints.stored(key) == FOOTPRINT
