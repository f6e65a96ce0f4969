"""The whole loop on fakes: order of calls, what is logged, what a resumed run does."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from rich.console import Console

from harbortrainer.backend.policy import UpdateResult
from harbortrainer.config import Config
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.learning.trajectory import (
    Outcome,
    Trajectory,
    TrajectoryGroup,
    TrialName,
    Turn,
    group_trajectories,
)
from harbortrainer.rollout.rollouts import GroupRequest
from harbortrainer.run.checkpoints import BEST, CheckpointLog, Keep, PolicyIdentity
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.metrics import MetricsLog
from harbortrainer.run.trajectories import read_batch
from harbortrainer.stopping import End, Stop
from harbortrainer.tasks.task import Task
from harbortrainer.training.loop import LoopParts
from harbortrainer.training.references import DRIFT_SEQUENCES, References
from harbortrainer.training.schedule import SettingsByStep
from harbortrainer.training.trainer import Terminus2Trainer, Trials
from harbortrainer.watch.display import Display

TASKS = [Task(f"t{i}", Path(f"t{i}"), str(i)) for i in range(4)]


class FakePolicy:
    """Records the calls; `version` grows with each update."""

    model_id = "m"
    origin = "the seed"
    frozen_samplers = False
    knows_own_ratio = False

    def __init__(self, calls: list[str], version: int = 0) -> None:
        self.calls = calls
        self.version = version
        self.batches: list[list[str]] = []
        self.rates: list[float] = []

    async def update(self, sequences_D, *, loss_fn, loss_fn_config, adam) -> UpdateResult:
        self.calls.append("update")
        self.version += 1
        self.batches.append([s.trial_name for s in sequences_D])
        self.rates.append(adam.learning_rate)
        return UpdateResult(tuple(s.logprobs_T for s in sequences_D), {"optim/grad_norm": 1.0})

    async def publish(self, step: int) -> Any:
        self.calls.append(f"publish {step}")
        return SimpleNamespace(version=self.version)

    def retire(self, in_use: Collection[int]) -> None: ...
    def relabel(self, step: int) -> None: ...
    def discard(self, path: str) -> None: ...

    async def save(self, step: int) -> str:
        self.calls.append(f"save {step}")
        return f"tinker://m/weights/{step}"

    async def delete(self, path: str) -> None:
        self.calls.append(f"delete {path.rsplit('/', 1)[-1]}")

    def losses(self, what: str, sampler: Any = None) -> list[End]:
        return []

    async def until_answering(self, limit_sec: float) -> None: ...


class FakeReference:
    """Gives each sampled token `nats` less than the policy does."""

    def __init__(self, nats: float = 0.0) -> None:
        self.nats = nats
        self.scored: list[list[str]] = []

    async def logprobs(self, sequences_D: Sequence[TrainingSequence]) -> list[np.ndarray]:
        self.scored.append([s.trial_name for s in sequences_D])
        return [s.logprobs_T - self.nats for s in sequences_D]


class FakeSampler:
    busy_seconds = in_flight_seconds = 0.0
    counters: ClassVar[dict[str, float]] = {"requests": 0.0}

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.version = -1

    def publish(self, client: Any, version: int) -> None:
        self.version = version

    relabel = functools.partialmethod(publish, None)
    versions_in_use: ClassVar[set[int]] = set()

    async def drain(self) -> None:
        self.calls.append("drain")

    async def abandon(self) -> None:
        self.calls.append("abandon")


class FakeRollouts:
    """Member 0 of each group gets reward 1, the others 0; `lost` are infrastructure failures, `stop` a cancellation."""

    def __init__(self, sampler: FakeSampler, lost: Sequence[str] = (), stop: str = "", constant: bool = False) -> None:
        self.sampler, self.lost, self.stop, self.constant = sampler, lost, stop, constant
        self.names: list[str] = []
        self.tasks: list[list[str]] = []
        self.on_sampled: Callable[[], None] = lambda: None
        self.last = 1  # problem of a batch
        self.most_trials, self.metrics = 10, dict[str, float]()
        self.agents = asyncio.Event()
        self.agents.set()
        self.lacking = dict[str, str]()  # by task: why it has no image

    def expect(self, tasks: Sequence[Task]) -> None:
        self.expected = [task.name for task in tasks]

    def supplied(self, group: GroupRequest) -> contextlib.AbstractAsyncContextManager[str]:
        return contextlib.nullcontext(self.lacking.get(group.task.name, ""))

    def unsupplied(self, group: GroupRequest, lacking: str) -> TrajectoryGroup:
        return group_trajectories(group.task.name, [])

    async def begin(self, kind: str, step: int) -> None:
        """At the start of each batch."""
        self.sampler.calls.append(f"sample {kind} {step}")

    async def run_groups(self, tasks_P, group_size, trials_dir, *, kind, step, temperature, on_trajectory, done, **_):
        await self.begin(kind, step)
        self.tasks.append([task.name for task in tasks_P])
        given = (group_size, trials_dir, temperature, on_trajectory, done)
        groups = [self._group(GroupRequest(task, kind, step, p, *given)) for p, task in enumerate(tasks_P)]
        self.on_sampled()
        return groups

    async def run_group(self, group: GroupRequest, _: Any) -> TrajectoryGroup:
        if not group.problem:
            self.tasks.append([])
        self.tasks[-1].append(group.task.name)  # in the order of starts, which may be before the agents'
        await self.agents.wait()
        if not group.problem:
            await self.begin(group.kind, group.step)
        trajectories = self._group(group)
        if group.problem == self.last:
            self.on_sampled()
        return trajectories

    def _group(self, group: GroupRequest) -> TrajectoryGroup:
        members = []
        for g in range(group.size):
            name = str(TrialName(group.kind, group.step, group.problem, g))
            if name == self.stop:
                raise asyncio.CancelledError
            if name not in group.done:
                self.names.append(name)
                group.on_trajectory(self._trial(name, group.task, g))
            members.append(group.done.get(name) or self._trial(name, group.task, g))
        return group_trajectories(group.task.name, members)

    def patience(self) -> None: ...

    def hold_agents(self) -> None:
        self.agents.clear()

    def release_agents(self) -> None:
        self.agents.set()

    def write_job(self, *_: Any) -> None: ...
    def refuse_all_lost(self, _: Any) -> None: ...

    def _trial(self, name: str, task: Task, member: int) -> Trajectory:
        turn = Turn(0, (1, 2), (3, 4), (-0.5, -0.5), weights_version=self.sampler.version)
        if name in self.lost:
            return Trajectory(task.name, name, (turn,), None, Outcome.INFRASTRUCTURE_ERROR, "gone")
        return Trajectory(task.name, name, (turn,), float(member == 0 or self.constant), Outcome.COMPLETED)


class Run:
    def __init__(
        self,
        folder: Path,
        start_step: int = 0,
        held_out: int = 1,
        rollouts: Any = None,
        policy: Callable[[list[str]], FakePolicy] = FakePolicy,
        stop: Stop | None = None,
        earlier: Sequence[tuple[int, Config]] = (),
        changed_from: int = 0,
        references: References | None = None,
        kind: type[FakeRollouts] = FakeRollouts,
        sampler: type[FakeSampler] = FakeSampler,
        **changes: Any,
    ) -> None:
        """`earlier`: settings of earlier processes by first step; those of this one hold from `changed_from` on."""
        values = {"model_name": "m", "tasks_dir": "d", "batch_size": 2, "group_size": 2, "n_epochs": 2, "save_every": 2}
        self.config = Config(**(values | changes))
        self.directory = RunDirectory(folder)
        self.calls: list[str] = []
        self.policy = policy(self.calls)
        self.sampler = sampler(self.calls)
        self.rollouts = kind(self.sampler, **(rollouts or {}))
        train, self.held_out = TASKS[held_out:], TASKS[:held_out]
        c = self.config
        schedule = SettingsByStep(train, [*earlier, (changed_from, c)])
        self.stop = stop or Stop()
        self.stop.limit(c, lambda _: None)
        policy_: Any = self.policy
        sampler_: Any = self.sampler
        rollouts_: Any = self.rollouts
        parts = LoopParts(
            run=self.directory,
            policy=policy_,
            trained=PolicyIdentity("m", 32, "chat_template:1", "off"),
            sampler=sampler_,
            metrics=MetricsLog(self.directory),
            checkpoints=CheckpointLog(self.directory.checkpoints, Keep(c.keep_checkpoints, BEST)),
            ledger=Ledger(self.directory.ledger),
            display=Display(Console(quiet=True, highlight=False, soft_wrap=True)),
            stop=self.stop,
        )
        trials = Trials(rollouts=rollouts_, references=references)
        self.trainer = Terminus2Trainer(self.config, parts, trials, schedule, self.held_out, start_step)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read_lines(self.directory.metrics)


async def ended_within(run: Run, seconds: float) -> bool:
    """Whether the run ended by itself within this time; otherwise it is killed."""
    work = asyncio.create_task(run.trainer.run())
    await asyncio.wait([work], timeout=seconds)
    if work.done():
        work.result()
        return True
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    return False


async def test_a_step_samples_what_was_just_published_and_trains_when_nothing_is_under_way(tmp_path):
    run = Run(tmp_path, max_steps=2)
    await run.trainer.run()
    assert run.calls == [
        "drain", "publish 0", "save 0", "sample eval 0",
        "sample step 0", "drain", "update", "drain", "publish 1",
        "sample step 1", "drain", "update", "drain", "publish 2", "sample eval 2", "save 2",
    ]  # fmt: skip


async def test_rows_are_one_a_step_under_a_growing_global_step_and_held_out_tasks_are_never_trained(tmp_path):
    run = Run(tmp_path)
    await run.trainer.run()
    assert [row["global_step"] for row in run.rows] == [0, 1, 2, 3]
    evaluated = [row["global_step"] for row in run.rows if "eval/reward_mean" in row]
    assert evaluated == [0, 2, 3]  # start, end of the first epoch, end
    trained = {name for batch in run.rollouts.tasks[1:] for name in batch if len(batch) > 1}
    assert "t0" not in trained and trained == {"t1", "t2", "t3"}
    assert all(row["train/tokens_per_unique_token"] == 1.0 for row in run.rows[1:])


async def test_eval_every(tmp_path):
    run = Run(tmp_path, eval_every=1, max_steps=2)
    await run.trainer.run()
    assert [row["global_step"] for row in run.rows if "eval/tasks" in row] == [0, 1, 2]


async def test_lost_member_is_left_out_of_its_group_and_counted(tmp_path):
    run = Run(tmp_path, rollouts={"lost": ["s000000-p00-g00"]}, max_steps=1)
    await run.trainer.run()
    row = run.rows[-1]
    assert row["group/trials_lost"] == 1 and row["group/too_small"] == 1
    assert run.policy.batches == [["s000000-p01-g00", "s000000-p01-g01"]]


async def test_a_batch_without_a_grade_has_no_reward(tmp_path):
    names = [f"s000000-p0{place}-g0{member}" for place in range(2) for member in range(2)]
    run = Run(tmp_path, rollouts={"lost": names}, max_steps=1, held_out=0)
    await run.trainer.run()
    row = run.rows[-1]
    assert (row["group/trials_lost"], row["group/constant_fraction"], row["train/skipped_batch"]) == (4, 1, 1)
    assert not [name for name in row if name.startswith(("reward/", "train/tokens_per", "train/action"))]


async def test_num_substeps_are_real_optimizer_steps(tmp_path):
    run = Run(tmp_path, num_substeps=2, max_steps=1, lr_schedule="linear", learning_rate=1.0)
    await run.trainer.run()
    assert run.policy.rates == [1.0, 0.5]
    assert sorted(name for batch in run.policy.batches for name in batch) == [
        "s000000-p00-g00", "s000000-p00-g01", "s000000-p01-g00", "s000000-p01-g01",
    ]  # fmt: skip
    assert run.rows[-1]["optim/steps"] == 2


async def test_batch_without_signal_takes_no_step_and_publishes_nothing_new(tmp_path):
    run = Run(tmp_path, rollouts={"constant": True}, max_steps=1, held_out=0)
    await run.trainer.run()
    assert "update" not in run.calls and "publish 1" not in run.calls
    assert run.rows[-1]["train/skipped_batch"] == 1


async def test_resumed_run_trains_the_same_batches_and_repeats_no_finished_trial(tmp_path):
    whole = Run(tmp_path / "a")
    (tmp_path / "a").mkdir()
    await whole.trainer.run()

    (tmp_path / "b").mkdir()
    killed = Run(tmp_path / "b", rollouts={"stop": "s000002-p01-g01"})
    with pytest.raises(asyncio.CancelledError):
        await killed.trainer.run()
    assert len(read_batch(killed.directory.trajectories("step", 2))) == 3
    resumed = Run(tmp_path / "b", start_step=2)
    await resumed.trainer.run()
    assert resumed.rollouts.tasks[0] == whole.rollouts.tasks[-2]
    assert [name for name in resumed.rollouts.names if name.startswith("s")] == ["s000002-p01-g01"]
    assert resumed.policy.batches == whole.policy.batches[-1:]


async def test_the_ledger_says_which_trials_became_which_step(tmp_path):
    run = Run(tmp_path)
    await run.trainer.run()
    trained = [record for record in read_lines(run.directory.ledger) if record["event"] == "trained"]
    assert [record["step"] for record in trained] == list(range(len(run.policy.batches)))
    for record, batch in zip(trained, run.policy.batches, strict=True):
        assert sorted(record["trials"]) == sorted(batch) == sorted(record["advantages"])
        assert sorted(record["advantages"].values()) == [-0.5, -0.5, 0.5, 0.5][: len(batch)]
        assert record["optimizer_steps"] == 1
    assert run.rows[-1]["funnel/trained"] == sum(map(len, run.policy.batches))


def references(**penalties: Any) -> References:
    """`start`: what kl/start is measured against; the others: by kl_reference."""
    start: Any = penalties.get("start")
    return References(start, penalties)


async def test_each_step_compares_some_trials_with_the_start_and_counts_their_tokens(tmp_path):
    start = FakeReference(0.25)
    run = Run(tmp_path, references=references(start=start), group_size=6, max_steps=1)
    await run.trainer.run()
    assert run.rows[-1]["kl/start"] == pytest.approx(0.25)
    ((*names,),) = start.scored
    assert len(names) == DRIFT_SEQUENCES and names == sorted(set(names)), "8 of 12, in order"
    (record,) = (r for r in read_lines(run.directory.ledger) if r["event"] == "trained")
    scored = dict(zip(record["trials"], record["scored"], strict=True))
    assert {name for name, tokens in scored.items() if tokens} == set(names) and sum(scored.values()) == 8 * 4


async def test_a_penalty_against_the_start_scores_every_trial_once(tmp_path):
    start = FakeReference(0.25)
    run = Run(tmp_path, references=references(start=start), max_steps=1, kl_penalty_coef=0.1, kl_reference="start")
    await run.trainer.run()
    assert [len(names) for names in start.scored] == [4]
    assert run.rows[-1]["kl/start"] == pytest.approx(0.25) and "kl/base" not in run.rows[-1]


async def test_a_fresh_adapters_start_is_the_base_model_and_both_are_reported(tmp_path):
    base = FakeReference(0.5)
    run = Run(tmp_path, references=References(base, {"base": base}), max_steps=1, kl_penalty_coef=0.1)  # type: ignore[arg-type]
    await run.trainer.run()
    assert [len(names) for names in base.scored] == [4]
    assert run.rows[-1]["kl/start"] == run.rows[-1]["kl/base"] == pytest.approx(0.5)


async def test_a_teacher_is_reported_beside_the_start(tmp_path):
    start, teacher = FakeReference(0.5), FakeReference(2.0)
    given = references(start=start, **{"runs/a@3": teacher})
    run = Run(tmp_path, references=given, max_steps=1, kl_penalty_coef=0.1, kl_reference="runs/a@3")
    await run.trainer.run()
    row = run.rows[-1]
    assert row["kl/reference"] == pytest.approx(2.0) and row["kl/start"] == pytest.approx(0.5) and "kl/base" not in row
    (record,) = (r for r in read_lines(run.directory.ledger) if r["event"] == "trained")
    assert sum(record["scored"]) == 2 * sum(record["tokens"]), "by each of the two"


async def test_without_rewards_constant_groups_are_trained_on(tmp_path):
    given = references(teacher=FakeReference(1.0))
    run = Run(
        tmp_path, references=given, rollouts={"constant": True}, max_steps=1, held_out=0,
        advantage="none", kl_penalty_coef=1.0, kl_reference="teacher",
    )  # fmt: skip
    await run.trainer.run()
    assert [len(batch) for batch in run.policy.batches] == [4]
    (record,) = (r for r in read_lines(run.directory.ledger) if r["event"] == "trained")
    assert set(record["advantages"].values()) == {0.0} and "left_out" not in record


async def test_a_policy_that_drifts_without_learning_is_announced_at_its_evaluation(tmp_path):
    run = Run(tmp_path, references=references(start=FakeReference(0.75)), eval_every=1, max_steps=2)
    said: list[str] = []
    run.trainer.parts.display.say = said.append  # pyright: ignore[reportAttributeAccessIssue]
    await run.trainer.run()
    warnings = [line for line in said if "drifts without learning" in line]
    assert len(warnings) == 2 and "since the evaluation after step 0 kl/start grew from 0.00 to 0.75" in warnings[0]
