"""Rollouts on a venue whose trials end as they are told."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbortrainer.config import Config
from harbortrainer.docker.checks.host import ServiceHost
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.quarantine import RETRIES, Retries
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.rollout.venue import RunParts, TrialRequest
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor.room import HarborRoom
from harbortrainer.venues.harbor.trial import new_trial
from harbortrainer.venues.harbor.venue import HarborVenue
from tests.support.fakes import chat_template

TASKS = [Task(name, Path("/tasks") / name, "") for name in ("a", "b", "c")]
TURN = Turn(0, (1,), (2,), (-0.5,), 0)
Run = Callable[[TrialRequest], Trajectory]


def graded(request: TrialRequest, reward: float = 1.0) -> Trajectory:
    return Trajectory(request.task.name, request.name, (TURN,), reward, Outcome.COMPLETED, attempt=request.attempt)


def lost(request: TrialRequest, outcome: Outcome = Outcome.INFRASTRUCTURE_ERROR, detail: str = "no disk") -> Trajectory:
    return Trajectory(request.task.name, request.name, (), None, outcome, detail, attempt=request.attempt)


class FakeJournal:
    """Notes what it is told; `stored`: the trials that are on disk by then."""

    def __init__(self, stored: list[str]) -> None:
        self.started_trials: list[tuple[str, str]] = []
        self.fates: list[tuple[str, str]] = []
        self.last: Trajectory | None = None
        self.stored_first = True
        self.ended_before: dict[str, tuple[int, int]] = {}
        self._stored = stored
        self.quarantined = dict[str, str]()

    def started(self, trial_name: str, task_name: str, attempt: int, host: str = "", agent: str = "") -> None:
        self.started_trials.append((trial_name, task_name))

    def ended(self, trajectory: Trajectory, disposition: str) -> None:
        self.last = trajectory
        self.fates.append((trajectory.trial_name, disposition))
        if disposition in ("graded", "dropped"):
            self.stored_first = self.stored_first and trajectory.trial_name in self._stored

    def attempts(self, first: str) -> tuple[int, int]:
        return self.ended_before.get(first, (0, 0))


@dataclass(frozen=True)
class FakeVenue(HarborVenue):
    """No container: `trial` runs a trial; `host` says whether the daemon answers."""

    trial: Callable[[TrialRequest], Awaitable[Trajectory]] | None = None

    def room(self, run: RunParts) -> "FakeRoom":
        return FakeRoom(run, self.host, self.trial)


class FakeRoom(HarborRoom):
    def __init__(self, run: RunParts, host: Any, trial: Any) -> None:
        super().__init__(run, host, new_trial)
        self.local.run = trial


class Pinged(ServiceHost):
    """A host whose daemon answers a ping as a function says."""

    def __init__(self, ping: Callable[[], str | None]) -> None:
        self.ping = ping


class Rig:
    """Rollouts whose trials are a function of the request."""

    def __init__(
        self,
        folder: Path,
        run: Run,
        faults: Sequence[Trajectory] = (),
        ping: Callable[[], str | None] = lambda: None,
        retries: Retries = RETRIES,
        **fields: Any,
    ) -> None:
        self.requests: list[TrialRequest] = []
        self.running = self.most = self.at_once = 0
        self.full = asyncio.Event()  # set once `at_once` trials run: none ends before
        self.folder = folder
        self.finished: list[str] = []

        async def run_trial(request: TrialRequest) -> Trajectory:
            self.requests.append(request)
            self.running += 1
            self.most = max(self.most, self.running)
            if self.running >= self.at_once:
                self.full.set()
            try:
                await self.full.wait()
                await asyncio.sleep(0.005)
                return run(request)
            finally:
                self.running -= 1

        config = Config(**{"model_name": "m", "tasks_dir": ".", "n_parallel_envs": 4} | fields)
        self.journal = FakeJournal(self.finished)
        venues = {"harbor": FakeVenue(Pinged(ping), trial=run_trial)}
        self.rollouts = Rollouts(
            config, PolicySampler(), chat_template(), "run", self.journal, faults=faults, venues=venues, retries=retries
        )
        self.rollouts._gates.containers.resize(config.n_parallel_envs)  # none starts ahead

    async def go(
        self,
        group_size: int = 3,
        done: dict[str, Trajectory] | None = None,
        tasks: Sequence[Task] = TASKS,
        training: bool = True,
    ) -> Any:
        return await self.rollouts.run_groups(
            tasks,
            group_size,
            self.folder / "step_000004",
            kind="step" if training else "eval",
            step=4,
            temperature=0.7,
            on_trajectory=lambda trajectory: self.finished.append(trajectory.trial_name),
            done=done or {},
        )

    @property
    def names(self) -> list[str]:
        return [request.name for request in self.requests]
