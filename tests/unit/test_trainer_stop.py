"""A run that is asked to stop: in which order it ends, what it leaves, and how it goes on."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import BackendError, ServerLost
from harbortrainer.stopping import SIGNAL_STATUS, Stop, Stopped
from tests.support.fake_loop import FragilePolicy, Run
from tests.support.fakes import let_others_act
from tests.support.tiers import first


def fresh(folder: Path, **named: Any) -> Run:
    folder.mkdir(exist_ok=True)
    return Run(folder, **named)


def go_on(run: Run, **named: Any) -> Run:
    """The next process of the same run."""
    records = read_lines(run.directory.checkpoints)
    return Run(run.directory.path, start_step=records[-1]["step"] if records else 0, **named)


def ask_before(run: Run, part: Any, name: str, nth: int = 0) -> None:
    """Ask the run to stop when a part's method is called for the n-th time."""
    original: Callable[..., Awaitable[Any]] = getattr(part, name)
    left = nth

    async def asking(*args: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            run.stop.request("SIGINT", SIGNAL_STATUS)
            await let_others_act()  # who waits for the request sees it
        return await original(*args, **named)

    setattr(part, name, asking)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = fresh(tmp_path_factory.mktemp("whole"), n_epochs=4, save_every=0)
    asyncio.run(run.trainer.run())
    return run


async def stopped(run: Run) -> None:
    async with asyncio.timeout(600):
        with pytest.raises(Stopped, match="SIGINT"):
            await run.trainer.run()


def told(run: Run) -> list[str]:
    said: list[str] = []
    run.trainer.parts.display.say = said.append  # pyright: ignore[reportAttributeAccessIssue]
    return said


@pytest.mark.parametrize("nth", first(1, (2, 0, 5, 1, 3, 4)))
@pytest.mark.parametrize("phase", ["update", "publish", "save", "begin"])
async def test_stopped_in_any_phase_it_goes_on_as_if_it_had_not_been(
    whole: Run, tmp_path: Path, phase: str, nth: int
) -> None:
    run = fresh(tmp_path / "stopped", n_epochs=4, save_every=1)
    ask_before(run, run.rollouts if phase == "begin" else run.policy, phase, nth)
    await stopped(run)
    saved = [record["step"] for record in read_lines(run.directory.checkpoints)]
    assert saved[-1] == run.trainer.step == len(run.policy.batches), "what was trained on is saved, once"
    assert len(saved) == len(set(saved))
    again = go_on(run, n_epochs=4, save_every=1)
    await again.trainer.run()
    assert run.policy.batches + again.policy.batches == whole.policy.batches
    names = run.rollouts.names + again.rollouts.names
    assert sorted(names) == sorted(whole.rollouts.names), "every trial once"
    assert [row["global_step"] for row in again.rows] == [row["global_step"] for row in whole.rows]
    keys = [sorted(k for k in row if not k.startswith("time/")) for row in again.rows]
    assert keys == [sorted(k for k in row if not k.startswith("time/")) for row in whole.rows], "evaluations too"
    assert not again.directory.pending_row.exists()


async def test_an_evaluation_is_stopped_and_its_step_gets_one_row_later(tmp_path: Path) -> None:
    run = fresh(tmp_path, eval_every=1, save_every=0)
    ask_before(run, run.rollouts, "begin", 2)  # evaluation at the start, first batch, evaluation after it
    await stopped(run)
    assert [row["global_step"] for row in run.rows] == [0]
    assert run.directory.pending_row.exists() and run.trainer.step == 1
    again = go_on(run, eval_every=1, save_every=0)
    await again.trainer.run()
    assert again.calls[:3] == ["drain", "publish 1", "sample eval 1"]
    assert [row["global_step"] for row in again.rows] == [0, 1, 2, 3]
    assert {"eval/reward_mean", "optim/grad_norm"} <= again.rows[1].keys()


@pytest.mark.parametrize("how", ["away", "refuses", "lost"])
async def test_no_checkpoint_where_the_server_makes_none_and_no_hang(tmp_path: Path, how: str) -> None:
    run = fresh(tmp_path, save_every=0)
    said = told(run)
    ask_before(run, run.rollouts, "begin", 2)  # the second batch

    async def away(limit_sec: float) -> None:
        raise BackendError(f"no answer for {limit_sec:g} s")

    async def lost(step: int) -> str:
        raise ServerLost("save_state: the server does not answer") if how == "lost" else BackendError("disk full")

    if how == "away":
        run.policy.until_answering = away  # pyright: ignore[reportAttributeAccessIssue]
    else:
        run.trainer.parts.checkpoints.records.clear()
        original = run.policy.save
        first = True

        async def save(step: int) -> str:
            nonlocal first
            if first:
                first = False
                return await original(step)
            return await lost(step)

        run.policy.save = save  # pyright: ignore[reportAttributeAccessIssue]
    await stopped(run)
    assert [record["step"] for record in read_lines(run.directory.checkpoints)] == [0]
    assert "a resume repeats the updates since step 0 from the trials on disk" in said[-1]
    again = go_on(run)
    await again.trainer.run()
    assert again.policy.batches[0] == run.policy.batches[0]
    assert not set(again.rollouts.names) & set(run.rollouts.names)
    assert [row["global_step"] for row in again.rows] == [0, 1, 2, 3]


async def test_an_update_that_waits_for_a_server_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    run = fresh(tmp_path)

    async def hangs(*_: Any, **__: Any) -> None:
        run.stop.request("SIGINT", SIGNAL_STATUS)
        await asyncio.Event().wait()

    async def away(limit_sec: float) -> None:
        raise BackendError("gone")

    run.policy.update = hangs  # pyright: ignore[reportAttributeAccessIssue]
    run.policy.until_answering = away  # pyright: ignore[reportAttributeAccessIssue]
    await stopped(run)
    assert run.calls[-1] == "abandon", "and nothing is saved of weights that nobody knows"


async def test_waiting_for_a_lost_server_ends_with_the_request(tmp_path: Path) -> None:
    tmp_path.joinpath("run").mkdir()
    run = Run(tmp_path / "run", policy=lambda calls: FragilePolicy(calls, "before update", 1))
    said = told(run)
    policy: Any = run.policy

    async def never(_: float) -> None:
        if not run.stop.asked:
            run.stop.request("SIGTERM", SIGNAL_STATUS)
            await asyncio.Event().wait()

    policy.until_answering = never
    async with asyncio.timeout(600):
        with pytest.raises(Stopped, match="SIGTERM"):
            await run.trainer.run()
    assert "no checkpoint: the server does not answer" in said[-1]
    assert not any(call.startswith("reload") for call in run.calls)


async def test_settings_changed_on_resume_hold_from_the_first_step_that_was_not_trained_on(tmp_path: Path) -> None:
    """Killed after three steps, with a state of none: steps that are made again keep their learning rate."""
    killed = fresh(tmp_path, save_every=0, learning_rate=1.0, n_epochs=4, rollouts={"stop": "s000003-p00-g00"})
    with pytest.raises(asyncio.CancelledError):
        await killed.trainer.run()
    before = killed.config
    again = go_on(
        killed, save_every=0, learning_rate=0.25, n_epochs=4, earlier=[(0, before)],
        changed_from=killed.trainer.parts.ledger.steps_trained,
    )  # fmt: skip
    await again.trainer.run()
    assert again.policy.rates == [1.0] * 3 + [0.25] * (len(again.policy.rates) - 3)
    assert again.policy.batches[:3] == killed.policy.batches


async def test_a_stop_that_was_asked_before_the_loop_begins_trains_nothing(tmp_path: Path) -> None:
    stop = Stop()
    stop.request("SIGINT", SIGNAL_STATUS)
    run = fresh(tmp_path, stop=stop)
    await stopped(run)
    assert run.rollouts.names == [] and [r["step"] for r in read_lines(run.directory.checkpoints)] == [0]
