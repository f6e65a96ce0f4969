"""oversample_max: batches of groups whose rewards differ, and what that costs; the whole loop with kills."""

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.budget.budget import Budget, Pricing
from harbortrainer.config import Config
from harbortrainer.durable.files import write_json
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.batch import CONSTANT
from harbortrainer.learning.pace import GroupSlot
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrialName, Turn
from harbortrainer.replay.replay import Journal, rebuild, same_as_recorded
from harbortrainer.run.config_changes import to_save
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.trajectories import read_batch
from harbortrainer.tasks.task import Task
from harbortrainer.training.plan import RunPlan
from harbortrainer.training.schedule import SettingsByStep
from tests.support.fake_loop import TASKS, Run, ended_within
from tests.support.small_settings import config
from tests.support.tiers import first
from tests.support.timed_loop import STEPS, SlowPolicy, made

SPARE, SIZE = 2, 2
DULL = {"dull": 0.4}
TURNS = (Turn(0, (1, 2), (3, 4, 5), (-0.5, -0.5, -0.5), weights_version=0),)


def check(run: Run, k: int) -> list[list[tuple[int, int]]]:
    """What every run that ended leaves. Returns the groups of each step."""
    records = read_lines(run.directory.ledger, checked=True)
    composed: dict[int, list[list[int]]] = {}
    for record in records:
        if record["event"] == "composed":
            assert composed.setdefault(record["step"], record["groups"]) == record["groups"], "composed again: the same"
    trained = {record["step"]: record for record in records if "digest" in record}
    assert sorted(trained) == sorted(composed) == list(range(STEPS))
    for step, groups in composed.items():
        rewards: dict[tuple[int, int], set[float]] = {}
        for batch, problem in groups:
            trials = read_batch(run.directory.trajectories("step", batch), f"{GroupSlot(batch, problem)}-*").values()
            assert all(0 <= step - turn.weights_version <= k for trial in trials for turn in trial.turns)
            rewards[batch, problem] = {trial.reward for trial in trials if trial.reward is not None}
        signal = {place for place, seen in rewards.items() if len(seen) > 1}
        assert SIZE <= len(groups) <= SIZE + SPARE
        assert len(signal) == SIZE or len(groups) == SIZE + SPARE, "a constant group fills a place when none is spare"
        assert {TrialName.parse(name).group[1:] for name in trained[step]["trials"]} == signal
        left = {TrialName.parse(name).group[1:] for name, why in trained[step].get("left_out", {}).items()}
        assert left == rewards.keys() - signal
        assert run.rows[step]["group/oversampled"] == len(groups) - SIZE
        assert run.rows[step]["group/count"] == len(groups)
    places = [tuple(place) for groups in composed.values() for place in groups]
    assert len(places) == len(set(places)) > STEPS * SIZE, "each group once"
    assert not any("differs_from" in record for record in records)
    assert [row["global_step"] for row in run.rows] == list(range(1, STEPS + 1))
    return [[(batch, problem) for batch, problem in composed[step]] for step in range(STEPS)]


@pytest.mark.parametrize("k", first(1, [2, 0, 1]))
async def test_batches_are_filled_with_groups_whose_rewards_differ(tmp_path: Path, k: int) -> None:
    run = made(tmp_path, max_steps_off_policy=k, oversample_max=SPARE, rollouts=DULL)
    await run.trainer.run()
    steps = check(run, k)
    if not k:  # in the order of tasks, without gaps
        assert [place for groups in steps for place in groups] == sorted(place for groups in steps for place in groups)
    account = Budget().account
    for name in run.rollouts.names:
        trial = Trajectory("t", name, TURNS, 0.0, Outcome.COMPLETED)
        run.trainer.parts.ledger.ended(trial, "graded")
    records = read_lines(run.directory.ledger, checked=True)
    for record in sorted(records, key=lambda record: record["event"] != "ended"):
        account.count(record)
    n_constant = sum(len(record["left_out"]) for record in records if record.get("left_out"))
    assert account.waiting == 0 and account.by_purpose()["constant"].sampled == 3 * n_constant > 0, "3 tokens a trial"
    assert account.by_purpose()["left_out"].tokens == 0


@pytest.mark.parametrize(("seed", "k"), first(2, [(seed, k) for seed in range(3) for k in (0, 2)]))
async def test_killed_anywhere_steps_are_made_again_of_the_same_groups(tmp_path: Path, seed: int, k: int) -> None:
    rng = random.Random(seed)
    names: Counter[str] = Counter()
    given: dict[str, Any] = {"max_steps_off_policy": k, "oversample_max": SPARE}
    run, process, over = made(tmp_path, seed, rollouts=DULL, **given), 0, False
    while not over:
        process += 1
        over = await ended_within(run, rng.uniform(0.0, 0.05 * process))
        names.update(run.rollouts.names)
        run = run if over else made(tmp_path, rng.randrange(1000), rollouts=DULL, **given)
    check(run, k)
    assert set(names.values()) == {1}, "no finished trial is repeated"


async def test_no_group_starts_between_the_composition_of_a_step_and_its_journal(tmp_path: Path) -> None:
    """Killed there, a run would have more groups on disk than its next process can train on in time."""
    run = made(tmp_path, max_steps_off_policy=2, oversample_max=SPARE, rollouts=DULL)
    ledger = run.trainer.parts.ledger
    early, compose = list[int](), ledger.compose

    def slow(step: int, places: Any) -> None:
        before = sum(map(len, run.rollouts.tasks))
        time.sleep(0.02)  # the event loop runs on
        early.append(sum(map(len, run.rollouts.tasks)) - before)
        compose(step, places)

    ledger.compose = slow  # type: ignore[method-assign]
    await run.trainer.run()
    assert set(early) == {0}
    check(run, 2)


class DriftingPolicy(SlowPolicy):
    """The first trial of each group is far from the weights in training."""

    async def logprobs(self, sequences_D: Any) -> list[Any]:
        return [s.logprobs_T + 2.0 * (TrialName.parse(s.trial_name).member == 0) for s in sequences_D]


@pytest.mark.parametrize("policy", [SlowPolicy, DriftingPolicy])
async def test_a_replay_rebuilds_each_step(tmp_path: Path, policy: type[SlowPolicy]) -> None:
    run = made(tmp_path, max_steps_off_policy=1, oversample_max=SPARE, rollouts=DULL, policy=policy, num_substeps=2)
    write_json(run.directory.config, to_save(run.config))
    await run.trainer.run()
    journal = Journal(RunDirectory(tmp_path))
    for step, record in journal.records.items():
        too_far = record.get("too_far", ())
        assert (policy is DriftingPolicy) == bool(too_far) or not record["trials"]
        batch, parts = rebuild(journal.groups(step), journal.config(step), step, too_far)
        assert same_as_recorded(batch, parts, record) == ""
        assert {*batch.left_out.values()} <= {CONSTANT}


def test_tasks_beyond_the_last_batch_follow_in_the_same_order() -> None:
    settings: dict[str, Any] = {"model_name": "m", "tasks_dir": "d", "batch_size": 3, "n_epochs": 1}
    plain, more = (SettingsByStep(TASKS, [(0, Config(**settings, oversample_max=n))]) for n in (0, 2))
    assert [plain.groups(batch) for batch in range(4)] == [3, 1, 0, 0]
    assert [more.groups(batch) for batch in range(4)] == [3, 1, 3, 3]
    assert [more.size(step) for step in range(3)] == [3, 1, 0] and more.batch(0) == plain.batch(0)
    assert len(more.batch(2)) == 3


@pytest.mark.parametrize("spare", [0, 2])
def test_the_plan_names_the_trials_on_top(spare: int) -> None:
    plan = RunPlan(config(oversample_max=spare, group_size=3, n_epochs=1), [], [], [], 1, None, Pricing())
    line = "oversample_max=2: where groups are constant, a step runs up to 6 trials more"
    assert plan.length_note == ((line,) if spare else ())


@pytest.mark.parametrize("warmup_steps", [8, 9])
def test_the_plan_names_a_warm_up_longer_than_the_run(warmup_steps: int) -> None:
    plan = RunPlan(config(warmup_steps=warmup_steps, num_substeps=2), [], [], [], 4, None, Pricing())
    named = [line for line in plan.length_note if line.startswith("warmup_steps=9: the run has 8 optimizer steps")]
    assert len(named) == len(plan.length_note) == (warmup_steps == 9)


def test_the_plan_names_settings_without_effect() -> None:
    given = {"eval_group_size": 2, "proactive_summarization_threshold": 100, "wandb_name": "w", "tool_format": "hermes"}

    def named(held_out: list[Task], **more: Any) -> list[str]:
        plan = RunPlan(config(**given, **more), [], held_out, [], 4, None, Pricing())
        return [line.partition(": without effect")[0] for line in plan.length_note]

    idle = ["eval_group_size=2", "proactive_summarization_threshold=100", "wandb_name=w", "tool_format=hermes"]
    assert named([], run_name="r") == idle
    assert named([Task("t", "t", "d", venue="tau")], enable_summarize=True) == []  # wandb_name names the folder
