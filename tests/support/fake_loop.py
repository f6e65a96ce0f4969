"""The whole loop on fakes: a run whose policy, sampler and rollouts answer at once, and record their calls."""

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from rich.console import Console

from harbortrainer.backend.policy import UpdateResult
from harbortrainer.config import Config
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import ServerLost, WeightsGone
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
from harbortrainer.stopping import End, Stop
from harbortrainer.tasks.task import Task
from harbortrainer.training.loop import LoopParts
from harbortrainer.training.references import References
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


class FakeSampler:
    totals: ClassVar[Counter[str]] = Counter()

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


class FragilePolicy(FakePolicy):
    """Loses the server the n-th time that `phase` is called; `history`: (batches of the restored state, this batch)."""

    def __init__(self, calls: list[str], phase: str, nth: int, times: int = 1) -> None:
        super().__init__(calls)
        self.phase, self.nth, self.times = phase, nth, times
        self.states: dict[str, list[list[str]]] = {}
        self.waited = 0
        self.gone: set[str] = set()
        self.saved = SimpleNamespace(delete_others=self.delete_others)

    async def delete_others(self, model_id: str, keep: set[str]) -> int:
        raise AssertionError("there was no other model")

    def lose(self, phase: str) -> None:
        if phase == self.phase:
            self.nth -= 1
            if self.nth < 0 and self.times:
                self.times -= 1
                raise ServerLost(f"{phase}: the server does not answer")

    async def update(self, sequences_D, **named: Any) -> Any:
        self.lose("before update")
        result = await super().update(sequences_D, **named)
        self.lose("after update")
        return result

    async def publish(self, step: int) -> Any:
        self.lose("publish")
        return await super().publish(step)

    async def save(self, step: int) -> str:
        self.lose("before save")
        path = await super().save(step)
        self.states[path] = list(self.batches)
        self.lose("after save")
        return path

    async def until_answering(self, limit_sec: float) -> None:
        self.waited += 1

    async def reload(self, path: str | None) -> None:
        self.lose("reload")
        if path is not None and path in self.gone:
            raise WeightsGone(f"restoring {path}: not found")
        self.calls.append(f"reload {path.rsplit('/', 1)[-1] if path else 'seed'}")
        self.batches = list(self.states[path]) if path else []
        self.version = len(self.batches)
