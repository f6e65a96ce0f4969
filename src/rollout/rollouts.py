"""Batches of trials: every task's group at once under the run's limits, faults retried once, then dropped."""

import asyncio
import logging
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from src.chat_template import ChatTemplate
from src.config import Config
from src.errors import BackendError, EnvironmentFault
from src.learning.trajectory import Outcome, Trajectory, TrajectoryGroup, group_trajectories
from src.rollout.docker.engine import client_cpu_seconds
from src.rollout.docker.health import Daemon, ping_docker, ping_nobody
from src.rollout.gates import Gates
from src.rollout.harbor_log import tame_harbor_log
from src.rollout.job_files import write_job_files
from src.rollout.outcome import SAMPLING, TREATMENTS, Treatment
from src.rollout.task import Task
from src.rollout.trial import TrialRequest, TrialSettings, run_trial
from src.tinker_llm import PolicySampler

log = logging.getLogger("harbortrainer")

MAX_OUTAGES = 10  # of the daemon in one trial's attempts; each is waited for and none counts as a fault of the trial

OnTrajectory = Callable[[Trajectory], None]


@dataclass(slots=True)
class _Batch:
    """What the trials of one batch share."""

    done: Mapping[str, Trajectory]
    on_trajectory: OnTrajectory | None
    patience: int  # faults before the first graded trial, of more than one task, after which it is given up
    graded: bool = False
    faults: list[Trajectory] = field(default_factory=list)

    def note(self, trajectory: Trajectory) -> None:
        """Count an attempt. Raises BackendError or EnvironmentFault when nothing else can be expected to work."""
        self.graded = self.graded or trajectory.reward is not None
        if trajectory.outcome is Outcome.INFRASTRUCTURE_ERROR:
            self.faults.append(trajectory)
        tasks = {fault.task_name for fault in self.faults}
        if not self.graded and len(tasks) > 1 and len(self.faults) >= self.patience:
            raise _refusal(self.faults)


class Rollouts:
    """Runs trials for one run: `n_parallel_envs` agents at a time, the next ones' environments started ahead."""

    def __init__(self, config: Config, sampler: PolicySampler, template: ChatTemplate, run_id: str) -> None:
        ping = ping_docker if config.environment_type == "docker" else ping_nobody
        self._gates = Gates.of(config)
        self._daemon = Daemon(config.env_outage_limit_sec, ping)
        self._settings = TrialSettings(config, sampler, template, run_id, self._gates, self._daemon)
        self._seed = config.seed

    @property
    def docker_cpu_seconds(self) -> float:
        """CPU time so far of the Docker client in this process."""
        return client_cpu_seconds()

    async def warm_up(self) -> None:
        """Import Harbor's agent in a thread, before the first trial needs it."""
        await asyncio.to_thread(_import_harbor)
        tame_harbor_log()

    async def aclose(self) -> None:
        """At the end of a run: wait for containers that are being removed, give up requests of cancelled trials."""
        from src.rollout.docker import removal

        self._daemon.close()
        await removal.drain()
        await self._settings.sampler.abandon()

    async def run_groups(
        self,
        tasks_P: Sequence[Task],
        group_size: int,
        trials_dir: Path,
        *,
        prefix: str,
        temperature: float,
        on_trajectory: OnTrajectory | None = None,
        done: Mapping[str, Trajectory] = MappingProxyType({}),
    ) -> list[TrajectoryGroup]:
        """`group_size` trials of each task, named `<prefix>-pNN-gNN`; a second attempt ends with `-a2`.

        `on_trajectory` is called in a thread, once a trial, when nothing about it will change. `done`: graded
        trajectories of an earlier process by trial name; they are not run again. When cancelled, it returns when every
        trial has ended. Raises EnvironmentFault or BackendError when no trial can be run: each failed, and not by the
        policy's doing.
        """
        batch = _Batch(done, on_trajectory, patience=2 * self._settings.config.n_parallel_envs)
        trials_dir.mkdir(parents=True, exist_ok=True)
        running_P: list[list[asyncio.Task[Trajectory]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for problem, task in enumerate(tasks_P):
                    requests = [
                        self._request(f"{prefix}-p{problem:02d}-g{member:02d}", task, trials_dir, temperature)
                        for member in range(group_size)
                    ]
                    running_P.append([group.create_task(self._member(request, batch)) for request in requests])
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            await asyncio.to_thread(write_job_files, trials_dir, len(tasks_P) * group_size)
        trajectories_P = [[task.result() for task in running] for running in running_P]
        _refuse_all_lost([trajectory for trajectories in trajectories_P for trajectory in trajectories])
        return [group_trajectories(task.name, ts) for task, ts in zip(tasks_P, trajectories_P, strict=True)]

    def _request(self, name: str, task: Task, trials_dir: Path, temperature: float) -> TrialRequest:
        return TrialRequest(name, task, trials_dir.resolve(), temperature, self._trial_seed(name))

    def _trial_seed(self, name: str) -> int:
        return zlib.crc32(f"{self._seed}/{name}".encode())

    async def _member(self, request: TrialRequest, batch: _Batch) -> Trajectory:
        """One member of a group: its trial, and once more when the first was lost to a fault."""
        for name, trajectory in batch.done.items():
            if trajectory.reward is not None and (name == request.name or name.startswith(f"{request.name}-a")):
                return trajectory
        trajectory = await self._attempts(request, batch)
        if trajectory.reward is None:
            log.warning("trial %s is dropped: %s: %s", trajectory.trial_name, trajectory.outcome, trajectory.detail)
        if batch.on_trajectory is not None:
            await asyncio.to_thread(batch.on_trajectory, trajectory)  # it writes to disk
        return trajectory

    async def _attempts(self, request: TrialRequest, batch: _Batch) -> Trajectory:
        """A second attempt after a fault, and as many more as the daemon's outages took."""
        faults = outages = 0
        while True:
            trajectory, hit = await self._attempt(self._again(request, 1 + faults + outages))
            if not hit:
                batch.note(trajectory)
            if TREATMENTS[trajectory.outcome] is not Treatment.RETRY:
                return trajectory
            faults, outages = faults + (not hit), outages + hit
            if faults > 1 or outages > MAX_OUTAGES:
                return trajectory
            log.warning("trial %s is run again: %s: %s", request.name, trajectory.outcome, trajectory.detail)

    def _again(self, request: TrialRequest, attempt: int) -> TrialRequest:
        name = request.name if attempt == 1 else f"{request.name}-a{attempt}"
        return replace(request, name=name, seed=self._trial_seed(name), attempt=attempt)

    async def _attempt(self, request: TrialRequest) -> tuple[Trajectory, bool]:
        """The trial, and whether the daemon went away during it."""
        async with self._gates.containers:
            await self._daemon.ready()
            before = self._daemon.outages
            leftover = request.trials_dir / request.name  # of a process that was killed during this trial
            if leftover.exists():
                await asyncio.to_thread(shutil.rmtree, leftover)
            trajectory = await run_trial(request, self._settings)
        if TREATMENTS[trajectory.outcome] is Treatment.RETRY:
            await self._daemon.suspect()
        return trajectory, self._daemon.outages > before


def _import_harbor() -> None:

    import src.rollout.agent  # noqa: F401


def _first(errors: BaseExceptionGroup) -> BaseException:
    """The error that stopped a batch: siblings were only cancelled for it."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _refuse_all_lost(trajectories: Sequence[Trajectory]) -> None:
    faults = [t for t in trajectories if t.outcome is Outcome.INFRASTRUCTURE_ERROR]
    if trajectories and len(faults) == len(trajectories):
        raise _refusal(faults)


def _refusal(faults: Sequence[Trajectory]) -> BackendError | EnvironmentFault:
    reason, _ = Counter(fault.detail for fault in faults).most_common(1)[0]
    message = f"no trial of the batch could be run; {len(faults)} failed, most often with: {reason}"
    return BackendError(message) if reason.startswith(SAMPLING) else EnvironmentFault(message)
