"""Groups of trials, one or a whole batch at once, under the run's limits."""

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
from harbortrainer.policy.sampler import PolicySampler, Sampler
from harbortrainer.rollout.attempts import NO_JOURNAL, Attempts, OnTrajectory, TrialJournal, trial_seed
from harbortrainer.rollout.outcome import Quarantine, lost_to_server
from harbortrainer.rollout.phases import UNOBSERVED, Gates, TrialObserver
from harbortrainer.rollout.trial import NewTrial, TrialContext, TrialRequest, new_trial
from harbortrainer.stopping import Stop, Stopped, first_error
from harbortrainer.tasks.task import Task

log = logging.getLogger("harbortrainer")


@dataclass(slots=True)
class Patience:
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


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """`size` trials of one task, each named by its TrialName; `outcome_policy` applies to kind "step".

    `on_trajectory` is called in a thread, once for each slot, when nothing about it will change. `done`: trials of an
    earlier process by name; the first one for a slot fills it.
    """

    task: Task
    kind: BatchKind
    step: int
    problem: int
    size: int
    trials_dir: Path
    temperature: float
    on_trajectory: OnTrajectory = lambda _: None
    done: Mapping[str, Trajectory] = MappingProxyType({})
    weights: Sampler | None = None  # None = those published last


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
        weights: Sampler | None = None,
        at_once: int = 0,
    ) -> list[TrajectoryGroup]:
        """Run a group of each task, as GroupRequest describes it. `at_once`: most groups that run, 0 = no limit.

        When cancelled, it returns when every trial has ended. Raises EnvironmentFault or BackendError when no trial can
        be run, through no fault of the policy; DiskFault; Stopped, once the trials that ran have ended.
        """
        patience = self.patience()
        with disk_errors(trials_dir):
            trials_dir.mkdir(parents=True, exist_ok=True)
        given = (group_size, trials_dir, temperature, on_trajectory, done, weights)
        places = asyncio.Semaphore(at_once or len(tasks_P) or 1)

        async def run(request: GroupRequest) -> TrajectoryGroup:
            async with places:
                return await self.run_group(request, patience)

        try:
            groups_P = await _gather(
                run(GroupRequest(task, kind, step, problem, *given)) for problem, task in enumerate(tasks_P)
            )
        finally:
            await asyncio.to_thread(self.write_job, trials_dir, len(tasks_P) * group_size)
        if self._stop.asked:
            raise Stopped(self._stop.why)
        self.refuse_all_lost(groups_P)
        return groups_P

    async def run_group(self, group: GroupRequest, patience: Patience) -> TrajectoryGroup:
        """Run one group, like `run_groups`; once the run is to stop, its result has trials that did not run."""
        policy = self._policy if group.kind == "step" else DEFAULT
        kept = {TrialName.parse(name).first: group.done[name] for name in reversed(list(group.done))}  # the first one
        with disk_errors(group.trials_dir):
            group.trials_dir.mkdir(parents=True, exist_ok=True)

        async def fill(name: TrialName) -> Trajectory:
            if (trajectory := kept.get(name)) is not None:
                self._settings.observer.kept(trajectory)
                return trajectory
            trajectory = await self._attempts.fill(
                self._request(name, group), policy, patience.note, group.on_trajectory
            )
            if trajectory.reward is None and not self._stop.asked:
                log.warning("trial %s is dropped: %s: %s", trajectory.trial_name, trajectory.outcome, trajectory.detail)
            return trajectory

        names = [TrialName(group.kind, group.step, group.problem, member) for member in range(group.size)]
        return group_trajectories(group.task.name, await _gather(map(fill, names)))

    def hold_agents(self) -> None:
        """Trials start their environments, and no agent begins, until `release_agents`."""
        self._settings.gates.weights.clear()

    def release_agents(self) -> None:
        self._settings.gates.weights.set()

    def write_job(self, trials_dir: Path, n_trials: int) -> None:
        """Write Harbor's files of a batch with `n_trials` trials over those on disk. Blocks. Raises DiskFault."""
        write_job_files(trials_dir, n_trials)

    def patience(self) -> Patience:
        """For the trials of one batch."""
        return Patience(2 * self._settings.config.n_parallel_envs)

    def refuse_all_lost(self, groups_P: Sequence[TrajectoryGroup]) -> None:
        """Raise when all trials are lost; a batch of one bad task does not stop a run in which another was graded."""
        trajectories = [t for group in groups_P for t in (*group.trajectories_G, *group.lost)]
        self._graded = self._graded or any(t.reward is not None for t in trajectories)
        one_task = len({t.task_name for t in trajectories}) == 1
        lost = [t for t in trajectories if t.outcome in (Outcome.INFRASTRUCTURE_ERROR, Outcome.CANCELLED)]
        if trajectories and len(lost) == len(trajectories) and not (self._graded and one_task):
            raise _refusal(lost)

    def _request(self, name: TrialName, group: GroupRequest) -> TrialRequest:
        seed = trial_seed(self._settings.config.seed, str(name))
        mode = "train" if name.kind == "step" else "eval"
        folder = group.trials_dir.resolve()
        return TrialRequest(str(name), group.task, folder, group.temperature, seed, mode=mode, weights=group.weights)


async def _gather[T](work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of all. When one fails, the others are cancelled, their clean-up awaited, and that failure is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return [task.result() for task in running]


def _refusal(faults: Sequence[Trajectory]) -> BackendError | EnvironmentFault:
    most = Counter(fault.detail for fault in faults).most_common(1)[0][0]
    message = f"no trial of the batch could be run; {len(faults)} failed, most often with: {most}"
    server = lost_to_server(next(fault for fault in faults if fault.detail == most))
    return BackendError(message) if server else EnvironmentFault(message)
