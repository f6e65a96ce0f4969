"""The loop on fakes that take their time: trials and a policy with durations."""

import asyncio
import random
from pathlib import Path
from typing import Any

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup, TrialName, Turn, group_trajectories
from harbortrainer.rollout.rollouts import GroupRequest
from harbortrainer.tasks.task import Task
from tests.support.fake_loop import FakePolicy, FakeRollouts, Run

K = 2
SETTINGS = {"max_steps_off_policy": K, "n_epochs": 6, "save_every": 3, "held_out": 0}  # 4 tasks, 12 steps of 2 groups
STEPS, SIZE = 12, 2


class TimedRollouts(FakeRollouts):
    """Each trial takes two turns and a random time; its turns carry the weights of their time."""

    def __init__(self, sampler: Any, seed: int = 0, slowest: str = "", dull: float = 0.0, **how: Any) -> None:
        """`dull`: share of the groups whose rewards are all equal."""
        super().__init__(sampler, **how)
        self.dull = dull
        self.rng = random.Random(seed)
        self.slowest = slowest
        self.running = 0
        self.ended = asyncio.Event()  # a group
        self.wait_for = asyncio.Event()  # the slowest trial's end

    async def run_group(self, group: GroupRequest, _: Any) -> TrajectoryGroup:
        self.running += 1
        try:
            await self.agents.wait()
            trials = [self._timed(group, member) for member in range(group.size)]
            return group_trajectories(group.task.name, await asyncio.gather(*trials))
        finally:
            self.running -= 1
            self.ended.set()

    async def _timed(self, group: GroupRequest, member: int) -> Trajectory:
        name = str(TrialName(group.kind, group.step, group.problem, member))
        if name in group.done:
            return group.done[name]
        first = Turn(0, (1, 2), (3, 4), (-0.5, -0.5), weights_version=self.sampler.version)
        await asyncio.sleep(min(0.03, 0.002 * self.rng.paretovariate(1.2)) if self.rng.random() < 0.8 else 0)
        if name == self.slowest:
            await self.wait_for.wait()
        last = Turn(0, (5,), (6,), (-0.5,), weights_version=self.sampler.version)
        reward = float(member == 0 or random.Random(name[:11]).random() < self.dull)
        trial = Trajectory(group.task.name, name, (first, last), reward, Outcome.COMPLETED)
        self.names.append(name)
        group.on_trajectory(trial)
        return trial

    def _trial(self, name: str, task: Task, member: int) -> Trajectory:
        return super()._trial(name, task, member)


class SlowPolicy(FakePolicy):
    frozen_samplers = True

    async def update(self, sequences_D: Any, **how: Any) -> Any:
        await asyncio.sleep(0.003)
        return await super().update(sequences_D, **how)

    async def logprobs(self, sequences_D: Any) -> Any:
        return [s.logprobs_T for s in sequences_D]


def made(folder: Path, seed: int = 0, **settings: Any) -> Run:
    folder.mkdir(exist_ok=True)
    records = read_lines(folder / "checkpoints.jsonl") if (folder / "checkpoints.jsonl").exists() else []
    rollouts = {"seed": seed} | settings.pop("rollouts", {})
    start = records[-1]["step"] if records else 0
    given: dict[str, Any] = {"policy": SlowPolicy, "kind": TimedRollouts} | SETTINGS | settings
    return Run(folder, start_step=start, rollouts=rollouts, **given)
