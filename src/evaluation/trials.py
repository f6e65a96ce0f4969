"""Runs the trials of one policy: journalled, those on disk not again, a lost server waited for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from src.backend.connect import Backend
from src.config import Config
from src.display.display import Display
from src.errors import ServerLost
from src.evaluation.policies import Subject, sampled
from src.learning.trajectory import Trajectory, TrajectoryGroup
from src.rollout.rollouts import Rollouts
from src.rollout.task import Task
from src.run.directory import RunDirectory
from src.run.trajectory_file import read_batch, write_trajectory
from src.tinker_llm import PolicySampler
from src.waiting import unless

MAX_LOSSES = 3  # of the server in a row without a trial in between: then it is not a restart that loses it
KIND = "eval"


@dataclass(frozen=True, slots=True)
class Runner:
    """What all trials of an evaluation share. `temperature`: 0 = greedy."""

    config: Config
    backend: Backend
    sampler: PolicySampler
    rollouts: Rollouts
    run: RunDirectory
    display: Display
    temperature: float
    retry_ungraded: bool

    async def groups(
        self, number: int, subject: Subject, tasks_P: Sequence[Task], trials: int
    ) -> list[TrajectoryGroup]:
        """`trials` of each task by the policy with this number. Raises BackendError, EnvironmentFault, DiskFault."""
        losses, known = 0, -1
        while True:
            done = self.done(number)
            losses, known = (0, len(done)) if len(done) > known else (losses + 1, known)
            if len({place(name) for name in done}) == len(tasks_P) * trials:  # nothing is left to sample
                return await self._run(number, subject, tasks_P, trials)
            try:
                async with sampled(subject, self.backend, self.config) as client:
                    self.sampler.publish(client, number)
                    ends = client.forgotten("sampling"), self.backend.silent("sampling")
                    try:
                        return await unless(self._run(number, subject, tasks_P, trials), *ends)
                    finally:
                        await self.sampler.abandon()
            except ServerLost as error:
                if losses >= MAX_LOSSES:
                    raise
                self.display.say(f"{error}; the trials that are left are run as soon as the server answers")
                await self.backend.until_answering(self.config.outage_limit_sec)
                await self.backend.reopen()

    def done(self, number: int) -> dict[str, Trajectory]:
        """Trials of this policy that are not run again; of several at one place the graded one comes first."""
        stored = read_batch(self.run.trajectories(KIND, number))
        graded = {name: trajectory for name, trajectory in stored.items() if trajectory.reward is not None}
        return graded if self.retry_ungraded else graded | stored

    async def _run(self, number: int, subject: Subject, tasks_P: Sequence[Task], trials: int) -> list[TrajectoryGroup]:
        folder = self.run.trajectories(KIND, number)
        with self.display.trials(subject.name, len(tasks_P) * trials) as show:

            def finished(trajectory: Trajectory) -> None:
                write_trajectory(folder, trajectory)
                show(trajectory)

            return await self.rollouts.run_groups(
                tasks_P,
                trials,
                self.run.batch(KIND, number),
                prefix=f"{KIND[0]}{number:06d}",
                temperature=self.temperature,
                on_trajectory=finished,
                done=self.done(number),
                training=False,
            )


def place(trial_name: str) -> str:
    """Name of the first trial of its place: `e000000-p01-g02` of `e000000-p01-g02-a3`."""
    return re.sub(r"-a\d+$", "", trial_name)
