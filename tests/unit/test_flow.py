"""Trials that run on during updates: the whole loop with trials that take time, kills, stops and a lost server."""

import asyncio
import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import EnvironmentFault
from harbortrainer.learning.pace import GroupSlot
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup, TrialName, group_trajectories
from harbortrainer.learning.treatment import UNFIT
from harbortrainer.rollout.rollouts import GroupRequest
from harbortrainer.run.trajectories import read_batch
from harbortrainer.stopping import SIGNAL_STATUS, Stopped
from tests.support.fake_loop import FragilePolicy, Run, ended_within
from tests.support.tiers import first
from tests.support.timed_loop import SIZE, STEPS, K, SlowPolicy, TimedRollouts, made


def timed(run: Run) -> TimedRollouts:
    assert isinstance(run.rollouts, TimedRollouts)
    return run.rollouts


def check(run: Run, k: int = K) -> None:
    """What every run that ended leaves: each group once, in time, as its journal has it."""
    records = read_lines(run.directory.ledger, checked=True)
    composed: dict[int, list[list[int]]] = {}
    for record in records:
        if record["event"] == "composed":
            assert composed.setdefault(record["step"], record["groups"]) == record["groups"], "composed again: the same"
    places = [tuple(place) for groups in composed.values() for place in groups]
    assert sorted(places) == [(batch, problem) for batch in range(STEPS) for problem in range(SIZE)]
    trained = {r["step"]: {TrialName.parse(name).group[1:] for name in r["trials"]} for r in records if "digest" in r}
    assert {step: sorted(groups) for step, groups in trained.items()} == {
        step: sorted(map(tuple, groups)) for step, groups in composed.items()
    }
    for step, groups in composed.items():
        for batch, problem in groups:
            folder = run.directory.trajectories("step", batch)
            for trial in read_batch(folder, f"{GroupSlot(batch, problem)}-*").values():
                assert all(0 <= step - turn.weights_version <= k for turn in trial.turns), (step, trial.trial_name)
    assert not any("differs_from" in record for record in records), "steps made again are made of the same trials"
    assert [row["global_step"] for row in run.rows] == list(range(1, STEPS + 1))
    assert all(row["off_policy/staleness_max"] <= k for row in run.rows)


@pytest.mark.parametrize(("k", "seed"), first(2, [(1, 0), (4, 1), (2, 1), (4, 0), (1, 1), (2, 0)]))
async def test_each_group_is_trained_on_once_and_in_time(tmp_path: Path, k: int, seed: int) -> None:
    run = made(tmp_path, seed, max_steps_off_policy=k)
    await run.trainer.run()
    check(run, k)
    assert max(row["off_policy/staleness_max"] for row in run.rows) > 0, "trials ran on during updates"
    assert len(run.rollouts.names) == len(set(run.rollouts.names)) == STEPS * SIZE * 2
    assert "drain" not in run.calls


async def test_a_slow_group_is_waited_for_only_when_it_would_be_too_old(tmp_path: Path) -> None:
    run = made(tmp_path, rollouts={"slowest": "s000000-p00-g01"})
    work = asyncio.create_task(run.trainer.run())
    async with asyncio.timeout(600):
        while run.calls.count("update") < K or timed(run).running > 1:
            await timed(run).ended.wait()
            timed(run).ended.clear()
    assert len(run.policy.batches) == K and not work.done(), "steps 0 and 1 did without it, step 2 waits"
    timed(run).wait_for.set()
    await work
    check(run)


@pytest.mark.parametrize("seed", first(2, range(5)))
async def test_killed_anywhere_it_repeats_no_finished_trial_and_no_group(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    names: Counter[str] = Counter()
    run, process, over = made(tmp_path, seed), 0, False
    while not over:
        process += 1
        over = await ended_within(run, rng.uniform(0.0, 0.05 * process))
        names.update(run.rollouts.names)
        run = run if over else made(tmp_path, rng.randrange(1000))
    check(run)
    assert set(names.values()) == {1} and len(names) == STEPS * SIZE * 2


@pytest.mark.parametrize("seed", first(1, [1, 0]))
async def test_a_stopped_run_goes_on(tmp_path: Path, seed: int) -> None:
    run = made(tmp_path, seed)
    asyncio.get_running_loop().call_later(0.01 * (seed + 1), run.stop.request, "SIGINT", SIGNAL_STATUS)
    with pytest.raises(Stopped):
        await run.trainer.run()
    assert timed(run).running == 0
    saved = read_lines(run.directory.checkpoints)[-1]["step"]
    assert saved == run.trainer.step
    again = made(tmp_path, seed)
    await again.trainer.run()
    check(again)
    assert not set(run.rollouts.names) & set(again.rollouts.names)
    assert run.policy.batches + again.policy.batches == [
        sorted(record["trials"]) for record in read_lines(run.directory.ledger, checked=True) if "digest" in record
    ]


class PreparingRollouts(TimedRollouts):
    """Notes which groups have begun at each update; no trial samples before its batch is asked for."""

    def __init__(self, sampler: Any, **how: Any) -> None:
        super().__init__(sampler, **how)
        self.begun: list[tuple[int, int]] = []  # batch, weights published at its start

    async def run_group(self, group: GroupRequest, _: Any) -> TrajectoryGroup:
        self.begun.append((group.step, self.sampler.version))
        return await super().run_group(group, _)


def _updates_wait(run: Any, ahead: set[int]) -> None:
    """Each update ends when a group of the next batch has begun, if that is one of `ahead`."""
    update, steps = run.policy.update, itertools.count(1)

    async def waiting(sequences_D: Any, **how: Any) -> Any:
        following = next(steps)
        async with asyncio.timeout(600):
            while following in ahead and following not in dict(run.rollouts.begun):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return await update(sequences_D, **how)

    run.policy.update = waiting


@pytest.mark.parametrize(
    "settings", first(1, [{}, {"environment_type": "daytona"}, {"max_trials": 999}, {"oversample_max": 1}])
)
async def test_on_policy_the_next_environments_start_during_the_update_and_sample_after_it(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    run = made(tmp_path, max_steps_off_policy=0, kind=PreparingRollouts, eval_every=5, **settings)
    rollouts = run.rollouts
    assert isinstance(rollouts, PreparingRollouts)
    due = set[int]() if "environment_type" in settings or "max_trials" in settings else {*range(1, STEPS)}
    _updates_wait(run, due)
    await run.trainer.run()
    assert {batch for batch, version in rollouts.begun if version == batch - 1} == due
    assert {version - batch for batch, version in rollouts.begun} <= {-1, 0}
    for step in range(STEPS):
        trials = read_batch(run.directory.trajectories("step", step)).values()
        assert {turn.weights_version for trial in trials for turn in trial.turns} == {step}, "strictly on-policy"


async def test_no_environment_of_the_next_batch_is_in_the_way_of_an_evaluation(tmp_path: Path) -> None:
    given = {"n_epochs": 8, "held_out": 1, "eval_every": 5}  # 3 tasks, 12 steps
    run = made(tmp_path, max_steps_off_policy=0, kind=PreparingRollouts, **given)
    due = {*range(1, STEPS)} - {5, 10}
    _updates_wait(run, due)
    await run.trainer.run()
    rollouts: Any = run.rollouts
    assert {batch for batch, version in rollouts.begun if version == batch - 1} == due


async def test_groups_start_in_the_places_of_those_trained_on_before_a_checkpoint_is_saved(tmp_path: Path) -> None:
    run = made(tmp_path, save_every=1)
    started: list[TrialName] = []
    original, save = run.rollouts.run_group, run.policy.save

    async def noting(group: GroupRequest, patience: Any) -> TrajectoryGroup:
        started.append(TrialName(group.kind, group.step, group.problem, 0))
        return await original(group, patience)

    async def slow(step: int) -> str:
        async with asyncio.timeout(600):
            while step > 0 and len(started) < min((step + K + 1) * SIZE, STEPS * SIZE):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return await save(step)

    run.rollouts.run_group, run.policy.save = noting, slow  # type: ignore[method-assign]
    await run.trainer.run()
    check(run)


class FragileSlowPolicy(FragilePolicy):
    frozen_samplers = True

    async def update(self, sequences_D: Any, **how: Any) -> Any:
        await asyncio.sleep(0.003)
        return await super().update(sequences_D, **how)

    logprobs = SlowPolicy.logprobs


@pytest.mark.parametrize("nth", first(1, [4, 0]))
@pytest.mark.parametrize("phase", ["before update", "after update", "publish", "before save", "after save"])
async def test_after_a_lost_server_steps_are_made_again_of_the_same_trials(
    tmp_path: Path, phase: str, nth: int
) -> None:
    nth = min(nth, 2) if "save" in phase else nth
    run = made(tmp_path, policy=lambda calls: FragileSlowPolicy(calls, phase, nth))
    await run.trainer.run()
    assert sum(call.startswith("reload") for call in run.calls) == 1
    check(run)
    assert set(Counter(run.rollouts.names).values()) == {1}


async def test_a_failing_group_ends_the_run_after_the_update(tmp_path: Path) -> None:
    run = made(tmp_path)
    original = run.rollouts.run_group

    async def failing(group: GroupRequest, patience: Any) -> TrajectoryGroup:
        if group.step == 2:
            raise OSError("no daemon")
        return await original(group, patience)

    run.rollouts.run_group = failing  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no daemon"):
        await run.trainer.run()
    assert timed(run).running == 0
    again = made(tmp_path)
    await again.trainer.run()
    check(again)


class FailingBeside(TimedRollouts):
    """In the same turn of the event loop one group of the first batch ends and the other fails."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.arrived, self.released = asyncio.Event(), asyncio.Event()

    async def run_group(self, group: GroupRequest, _: Any) -> TrajectoryGroup:
        result = await super().run_group(group, _)
        if group.problem:
            await self.arrived.wait()
            asyncio.get_running_loop().call_soon(self.released.set)
        self.arrived.set()
        await self.released.wait()  # the first group waits first, and wakes first
        if group.problem:
            raise EnvironmentFault("the daemon went away")
        return result


async def test_a_group_that_fails_while_another_ends_is_what_ends_the_run(tmp_path: Path) -> None:
    run = made(tmp_path / "run", kind=FailingBeside, max_steps_off_policy=0)
    with pytest.raises(EnvironmentFault, match="the daemon went away"):
        await run.trainer.run()


class NoRoom(TimedRollouts):
    async def run_group(self, group: GroupRequest, _: Any) -> TrajectoryGroup:
        if group.task.name == "t1":
            return self.unsupplied(group, f"{UNFIT}the prompt has 9 tokens")
        return await super().run_group(group, _)

    def unsupplied(self, group: GroupRequest, lacking: str) -> TrajectoryGroup:
        return group_trajectories("t1", [Trajectory("t1", "n", (), None, Outcome.INFRASTRUCTURE_ERROR, lacking)])


@pytest.mark.parametrize("lacking", ["an image", "room in its context"])
async def test_the_next_task_takes_the_place_of_one_without(tmp_path: Path, lacking: str) -> None:
    run = made(tmp_path, kind=NoRoom if "room" in lacking else TimedRollouts)
    if lacking == "an image":
        run.rollouts.lacking = {"t1": "image: no rule to make it"}
    await run.trainer.run()
    check(run)
    stored = [trial for step in range(STEPS) for trial in read_batch(run.directory.trajectories("step", step)).values()]
    assert len(stored) == STEPS * SIZE * 2 and {trial.task_name for trial in stored} == {"t0", "t2", "t3"}
    assert run.rollouts.expected, "what comes next is made ahead"
