"""A server lost in any phase: the last checkpoint is restored, and updates are made again from the same trials."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import BackendError, ServerLost
from harbortrainer.stopping import SIGNAL_STATUS, Stopped
from harbortrainer.training import outage
from tests.support.fake_loop import FragilePolicy, Run
from tests.support.tiers import first


def fragile(folder: Path, phase: str, nth: int, times: int = 1, **changes: Any) -> Run:
    folder.mkdir(exist_ok=True)

    def policy(calls: list[str]) -> FragilePolicy:
        return FragilePolicy(calls, phase, nth, times)

    run = Run(folder, policy=policy, save_every=2, n_epochs=4, **changes)
    lossy: Any = run.policy
    run.rollouts.on_sampled = lambda: lossy.lose("sample")
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("whole"), save_every=2, n_epochs=4)
    asyncio.run(run.trainer.run())
    return run


@pytest.mark.parametrize("nth", first(1, (3, 0, 1)))
@pytest.mark.parametrize("phase", ["sample", "before update", "after update", "publish", "before save", "after save"])
async def test_lost_in_any_phase_the_updates_are_those_of_an_unbroken_run(
    whole: Run, tmp_path: Path, phase: str, nth: int
) -> None:
    run = fragile(tmp_path / "lost", phase, nth)
    await run.trainer.run()
    assert run.policy.batches == whole.policy.batches, "each update once, in order, of the same trials"
    assert sum(call.startswith("reload") for call in run.calls) == 1
    assert len(run.rollouts.names) == len(set(run.rollouts.names)), "no finished trial was run again"
    rows = [{k: v for k, v in row.items() if k.startswith(("reward/", "group/"))} for row in run.rows]
    assert rows == [{k: v for k, v in row.items() if k.startswith(("reward/", "group/"))} for row in whole.rows]
    assert [row["global_step"] for row in run.rows] == [row["global_step"] for row in whole.rows]
    assert run.rows[-1]["funnel/trained"] == whole.rows[-1]["funnel/trained"]
    trained = {r["step"]: r["trials"] for r in read_lines(run.directory.ledger) if r["event"] == "trained"}
    assert list(trained.values()) == run.policy.batches


@pytest.mark.parametrize("phase", ["before update", "after update", "publish", "before save"])
async def test_lost_while_it_stops_it_saves_no_broken_step(whole: Run, tmp_path: Path, phase: str) -> None:
    """The update could have been made twice, or its step had no row."""
    run = fragile(tmp_path / "lost", phase, 1 if phase == "before save" else 3)
    lossy: Any = run.policy
    lose = lossy.lose

    def stopping(at: str) -> None:
        try:
            lose(at)
        except ServerLost:
            run.stop.request("SIGINT", SIGNAL_STATUS)
            raise

    lossy.lose = stopping
    with pytest.raises(Stopped):
        await run.trainer.run()
    latest = read_lines(run.directory.checkpoints)[-1]
    assert len(lossy.states[latest["path"]]) == latest["step"]
    again = Run(run.directory.path, start_step=latest["step"], save_every=2, n_epochs=4)
    await again.trainer.run()
    assert lossy.states[latest["path"]] + again.policy.batches == whole.policy.batches
    assert [row["global_step"] for row in again.rows] == [row["global_step"] for row in whole.rows]


async def test_a_server_that_answers_before_it_works_is_asked_again(whole: Run, tmp_path: Path) -> None:
    run = fragile(tmp_path / "lost", "sample", 2)
    policy: Any = run.policy
    original, failures = policy.reload, 2

    async def reload(path: str) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise ServerLost("restoring: no engine yet")
        await original(path)

    policy.reload = reload
    await run.trainer.run()
    assert policy.waited == 3 and policy.batches == whole.policy.batches


async def test_a_server_that_is_lost_again_and_again_stops_the_run(tmp_path: Path) -> None:
    run = fragile(tmp_path, "before update", 1, times=99)
    with pytest.raises(ServerLost, match="before update"):
        await run.trainer.run()
    assert sum(call.startswith("reload") for call in run.calls) == outage.MAX_LOSSES


async def test_other_refusals_are_not_tried_again(tmp_path: Path) -> None:
    run = fragile(tmp_path, "never", 0)

    async def update(*_: Any, **__: Any) -> None:
        raise BackendError("loss_fn: the server does not have it")

    run.policy.update = update  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(BackendError, match="does not have it"):
        await run.trainer.run()
    assert not any(call.startswith("reload") for call in run.calls)
