"""Batches of trials: the groups of all tasks at once, under the run's limits."""

import asyncio
import gc
import importlib
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harbortrainer.config import Config
from harbortrainer.docker import cleaning
from harbortrainer.docker.daemon import Daemon, Ping, ping_docker
from harbortrainer.durable.disk import disk_errors
from harbortrainer.errors import BackendError, EnvironmentFault
from harbortrainer.harbor import quiet_harbor_log, write_job_files
from harbortrainer.learning.trajectory import (
    BatchKind,
    Outcome,
    Trajectory,
    TrajectoryGroup,
    TrialName,
    group_trajectories,
)
from harbortrainer.learning.treatment import DEFAULT, outcome_policy
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.attempts import NO_JOURNAL, Attempts, OnTrajectory, TrialJournal, trial_seed
from harbortrainer.rollout.outcome import Quarantine, lost_to_server
from harbortrainer.rollout.phases import UNOBSERVED, Gates, TrialObserver
from harbortrainer.rollout.trial import NewTrial, TrialContext, TrialRequest, new_trial
from harbortrainer.stopping import Stop, Stopped, first_error
from harbortrainer.tasks.task import Task

log = logging.getLogger("harbortrainer")


@dataclass(slots=True)
class _Patience:
    """Gives a batch up after `most` faults in more than one task without any grade."""

    most: int
    graded: bool = False
    faults: list[Trajectory] = field(default_factory=list)

    def note(self, trajectory: Trajectory) -> None:
        """Count a trial. Raises BackendError or EnvironmentFault."""
        self.graded = self.graded or trajectory.reward is not None
        if trajectory.outcome is Outcome.INFRASTRUCTURE_ERROR:
            self.faults.append(trajectory)
        if not self.graded and len(self.faults) >= self.most and len({fault.task_name for fault in self.faults}) > 1:
            raise _refusal(self.faults)


class Rollouts:
    """Runs the trials of a run: `n_parallel_envs` agents at a time, with the next environments started ahead."""

    def __init__(
        self,
        config: Config,
        sampler: PolicySampler,
        template: ChatTemplate,
        run_id: str,
        journal: TrialJournal = NO_JOURNAL,
        stop: Stop | None = None,
        faults: Sequence[Trajectory] = (),
        observer: TrialObserver = UNOBSERVED,
        ping: Ping | None = None,
        new_trial: NewTrial = new_trial,
    ) -> None:
        """`faults`: an earlier process's last ones in a row; `ping`: checks the environments' host, None = Docker."""
        self._stop = stop or Stop()
        self._daemon = Daemon(config.outage_limit_sec, ping or ping_docker)
        gates = Gates.of(config)
        self._settings = TrialContext(config, sampler, template, run_id, gates, self._daemon, observer, new_trial)
        self._policy = outcome_policy(config.outcome_policy)
        self._quarantine = Quarantine(config.quarantine_after, journal.quarantined)
        for fault in faults:
            self._quarantine.note(fault)
        self._attempts = Attempts(self._settings, self._quarantine, journal, self._stop)
        self._graded = False  # whether any trial of this run was

    async def warm_up(self) -> None:
        """Import Harbor's agent in a thread, before the first trial needs it."""
        await asyncio.to_thread(importlib.import_module, "harbortrainer.rollout.agent")
        gc.collect()
        gc.freeze()  # modules: a collection in the middle of a batch need not walk through them
        quiet_harbor_log()

    async def aclose(self) -> None:
        """At the end of a run: wait for the removal of containers, and give up requests of cancelled trials."""
        self._daemon.close()
        await cleaning.drain()
        await self._settings.sampler.abandon()

    async def run_groups(
        self,
        tasks_P: Sequence[Task],
        group_size: int,
        trials_dir: Path,
        *,
        kind: BatchKind = "step",
        step: int,
        temperature: float,
        on_trajectory: OnTrajectory = lambda _: None,
        done: Mapping[str, Trajectory] = MappingProxyType({}),
    ) -> list[TrajectoryGroup]:
        """Run `group_size` trials of each task, each named by its TrialName; `outcome_policy` applies to kind "step".

        `on_trajectory` is called in a thread, once for each slot, when nothing about it will change. `done`: trials of
        an earlier process by name; the first one for a slot fills it. When cancelled, it returns when every trial has
        ended. Raises EnvironmentFault or BackendError when no trial can be run, through no fault of the policy;
        DiskFault; Stopped, once the trials that ran have ended."""
        patience = _Patience(2 * self._settings.config.n_parallel_envs)
        policy = self._policy if kind == "step" else DEFAULT
        kept = {TrialName.parse(name).first: done[name] for name in reversed(list(done))}  # the first one of a slot
        with disk_errors(trials_dir):
            trials_dir.mkdir(parents=True, exist_ok=True)

        async def fill(name: TrialName, task: Task) -> Trajectory:
            if (trajectory := kept.get(name)) is not None:
                self._settings.observer.kept(trajectory)
                return trajectory
            request = self._request(name, task, trials_dir, temperature)
            trajectory = await self._attempts.fill(request, policy, patience.note, on_trajectory)
            if trajectory.reward is None and not self._stop.asked:
                log.warning("trial %s is dropped: %s: %s", trajectory.trial_name, trajectory.outcome, trajectory.detail)
            return trajectory

        try:
            trajectories_P = await _gather(
                [fill(TrialName(kind, step, problem, member), task) for member in range(group_size)]
                for problem, task in enumerate(tasks_P)
            )
        finally:
            await asyncio.to_thread(write_job_files, trials_dir, len(tasks_P) * group_size)
        if self._stop.asked:
            raise Stopped(self._stop.why)
        self._refuse_all_lost([trajectory for trajectories in trajectories_P for trajectory in trajectories])
        return [group_trajectories(task.name, ts) for task, ts in zip(tasks_P, trajectories_P, strict=True)]

    def _refuse_all_lost(self, trajectories: Sequence[Trajectory]) -> None:
        """Raise when all trials are lost; a batch of one bad task does not stop a run in which another was graded."""
        self._graded = self._graded or any(t.reward is not None for t in trajectories)
        one_task = len({t.task_name for t in trajectories}) == 1
        lost = [t for t in trajectories if t.outcome in (Outcome.INFRASTRUCTURE_ERROR, Outcome.CANCELLED)]
        if trajectories and len(lost) == len(trajectories) and not (self._graded and one_task):
            raise _refusal(lost)

    def _request(self, name: TrialName, task: Task, trials_dir: Path, temperature: float) -> TrialRequest:
        seed = trial_seed(self._settings.config.seed, str(name))
        mode = "train" if name.kind == "step" else "eval"
        return TrialRequest(str(name), task, trials_dir.resolve(), temperature, seed, mode=mode)


async def _gather(work_P: Iterable[Sequence[Coroutine[Any, Any, Trajectory]]]) -> list[list[Trajectory]]:
    """Results of all. When one fails, the others are cancelled, their clean-up awaited, and that failure is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            running_P = [[group.create_task(work) for work in works] for works in work_P]
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return [[task.result() for task in running] for running in running_P]


def _refusal(faults: Sequence[Trajectory]) -> BackendError | EnvironmentFault:
    most = Counter(fault.detail for fault in faults).most_common(1)[0][0]
    message = f"no trial of the batch could be run; {len(faults)} failed, most often with: {most}"
    server = lost_to_server(next(fault for fault in faults if fault.detail == most))
    return BackendError(message) if server else EnvironmentFault(message)
