"""Evaluations beside the next batch: rows and trials as without, wherever a run ends in between."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.cli.arguments import validate
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import BatchKind, batch_name
from harbortrainer.stopping import Stop, Stopped
from harbortrainer.training import outage
from tests.support.fakes import let_others_act
from tests.support.tiers import first
from tests.unit.test_recovery import FragilePolicy
from tests.unit.test_trainer import Run
from tests.unit.test_validation import config

TIMES = ("time/", "util/", "orchestrator/", "rollout/trials_per_second", "spend/", "sampler/")


def made(folder: Path, **settings: Any) -> Run:
    folder.mkdir(exist_ok=True)
    return Run(folder, **({"eval_every": 1, "eval_overlap": True, "n_epochs": 2, "save_every": 2} | settings))


def rows(run: Run) -> list[dict[str, Any]]:
    """Without what depends on the clock, or on when a trial was counted."""
    return [{k: v for k, v in row.items() if not k.startswith((*TIMES, "funnel/"))} for row in run.rows]


async def finished(folder: Path, **settings: Any) -> Run:
    run = made(folder, **settings)
    await run.trainer.run()
    return run


def before_each_batch(run: Run, act: Callable[[str], None]) -> None:
    """Calls `act` with the name of every batch, and lets whoever was told act, before that batch is sampled."""
    rollouts: Any = run.rollouts
    begin = rollouts.begin

    async def acting(kind: BatchKind, step: int) -> None:
        act(batch_name(kind, step))
        await let_others_act()
        await begin(kind, step)

    rollouts.begin = acting


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run without the overlap."""
    return asyncio.run(finished(tmp_path_factory.mktemp("plain"), eval_overlap=False))


async def test_rows_checkpoints_and_trials_are_those_of_evaluations_in_between(tmp_path, plain):
    run = await finished(tmp_path / "run")
    assert rows(run) == rows(plain) and [row["global_step"] for row in run.rows] == [0, 1, 2, 3]
    assert all("eval/reward_mean" in row for row in run.rows)
    assert run.policy.batches == plain.policy.batches and sorted(run.rollouts.names) == sorted(plain.rollouts.names)
    saved = [[call for call in one.calls if call.startswith("save")] for one in (run, plain)]
    assert saved[0] == saved[1] == ["save 0", "save 2", "save 3"]
    assert not run.directory.pending_row.exists()


async def test_an_evaluation_and_the_next_batch_are_of_the_same_weights_and_over_before_the_update(tmp_path):
    run = await finished(tmp_path, max_steps=2)
    assert [call for call in run.calls if call != "drain"] == [
        "publish 0", "save 0", "sample eval 0", "sample step 0", "update", "publish 1",
        "sample eval 1", "sample step 1", "update", "publish 2", "sample eval 2", "save 2",
    ]  # fmt: skip


@pytest.mark.parametrize("at", ["s000000-p01-g01", "s000001-p00-g00", "s000002-p01-g01", "e000002-p00-g00"])
async def test_a_killed_run_goes_on_with_the_evaluation_that_was_under_way(tmp_path, plain, at):
    killed = made(tmp_path / "run", rollouts={"stop": at})
    with pytest.raises(asyncio.CancelledError):
        await killed.trainer.run()
    state = killed.trainer.parts.checkpoints.latest()
    assert state is not None
    resumed = await finished(tmp_path / "run", start_step=state.step)
    assert rows(resumed) == rows(plain)
    assert not set(killed.rollouts.names) & set(resumed.rollouts.names), "no trial is run twice"
    assert not resumed.directory.pending_row.exists()


@pytest.mark.parametrize(
    "at", ["eval_000000", "step_000000", "eval_000001", "step_000001", "eval_000002", "step_000002", "eval_000003"]
)
async def test_a_run_that_is_stopped_goes_on_alike(tmp_path, plain, at):
    stop = Stop()
    run = made(tmp_path / "run", stop=stop)
    before_each_batch(run, lambda batch: stop.request("enough", 130) if batch == at else None)
    with pytest.raises(Stopped):
        await run.trainer.run()
    state = run.trainer.parts.checkpoints.latest()
    assert state is not None and state.step == run.trainer.step
    resumed = await finished(tmp_path / "run", start_step=state.step)
    assert rows(resumed) == rows(plain) and resumed.rows[-1]["global_step"] == 3


@pytest.mark.parametrize("nth", first(3, (0, 3, 6, 1, 2, 4, 5)))
@pytest.mark.parametrize("phase", ["sample", "before update", "after update", "publish", "before save", "after save"])
async def test_a_server_lost_in_any_phase_changes_nothing(tmp_path, plain, phase, nth, monkeypatch):
    monkeypatch.setattr(outage, "FIRST_PAUSE_SEC", 0.001)
    run = await finished(tmp_path / "run", policy=lambda calls: FragilePolicy(calls, phase, nth))
    assert rows(run) == rows(plain)
    assert sorted(run.rollouts.names) == sorted(plain.rollouts.names)


async def test_a_run_goes_on_without_the_overlap_it_was_stopped_in(tmp_path, plain):
    stop = Stop()
    run = made(tmp_path / "run", stop=stop)
    before_each_batch(run, lambda batch: stop.request("enough", 130) if batch == "step_000001" else None)
    with pytest.raises(Stopped):
        await run.trainer.run()
    resumed = await finished(tmp_path / "run", start_step=1, eval_overlap=False)
    assert rows(resumed) == rows(plain)


def test_without_held_out_tasks_there_is_nothing_to_overlap():
    with pytest.raises(UserError, match="eval_overlap=true: no task is held out"):
        validate(config(eval_overlap=True))
