"""Groups of trials, one or a whole batch at once, under the run's limits."""

import asyncio
import contextlib
import logging
from collections import ChainMap, Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harbortrainer.config import Config
from harbortrainer.durable.disk import disk_errors
from harbortrainer.errors import BackendError, EnvironmentFault
from harbortrainer.learning.agents import agents_of, drawn
from harbortrainer.learning.trajectory import (
    BatchKind,
    Outcome,
    Trajectory,
    TrajectoryGroup,
    TrialName,
    group_trajectories,
)
from harbortrainer.learning.treatment import DEFAULT, outcome_policy
from harbortrainer.model_api.gate import check_agents
from harbortrainer.other_models.judge import Judge
from harbortrainer.other_models.users import Users
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler, Sampler
from harbortrainer.rollout.attempts import NO_JOURNAL, Attempts, OnTrajectory, TrialJournal, trial_seed
from harbortrainer.rollout.gates import UNOBSERVED, Gates, TrialObserver, n_containers
from harbortrainer.rollout.quarantine import RETRIES, Quarantine, Retries, lost_to_server
from harbortrainer.rollout.venue import Room, RunParts, Say, TrialRequest, Venue
from harbortrainer.stopping import Stop, Stopped, first_error, run_until
from harbortrainer.tasks.task import Task
from harbortrainer.tasks.venue import venue, wrong_answer

log = logging.getLogger("harbortrainer")


@dataclass(slots=True)
class Patience:
    """Gives a batch up after `most()` faults in more than one task without any grade."""

    most: Callable[[], int]
    graded: bool = False
    faults: list[Trajectory] = field(default_factory=list)

    def note(self, trajectory: Trajectory) -> None:
        """Count a trial. Raises BackendError or EnvironmentFault."""
        self.graded = self.graded or trajectory.reward is not None
        if trajectory.outcome is Outcome.INFRASTRUCTURE_ERROR:
            self.faults.append(trajectory)
        if not self.graded and len(self.faults) >= self.most() and len({fault.task_name for fault in self.faults}) > 1:
            raise _refusal(self.faults)


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A group: `size` trials of one task, each named by its TrialName; `outcome_policy` applies to kind "step".

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
        venues: Mapping[str, Venue] = MappingProxyType({}),
        judge: Judge | None = None,
        users: Users | None = None,
        retries: Retries = RETRIES,
    ) -> None:
        """`faults`: an earlier process's last ones in a row; `venues`: replace those of the registry.

        `judge`: of trials of training; `users`: what simulates the users of trials, None = the tasks' own scripts.
        """
        self._stop = stop or Stop()
        self._gates = gates = Gates.of(config)
        self._settings = RunParts(config, sampler, template, run_id, gates=gates, observer=observer, users=users)
        self._rooms = _Rooms(self._settings, venues)
        self._policy = outcome_policy(config.outcome_policy)
        self._quarantine = Quarantine(journal.quarantined, retries.faults)
        for fault in faults:
            self._quarantine.note(fault)
        self._attempts = Attempts(
            self._settings, self._rooms, self._quarantine, journal, self._stop, judge=judge, retries=retries
        )
        self._graded = False  # whether any trial of this run was

    @property
    def most_trials(self) -> int:
        """Trials at once."""
        return self._gates.containers.limit

    @property
    def metrics(self) -> dict[str, float]:
        """The hosts now."""
        return dict(ChainMap(*(dict(room.metrics) for room in self._rooms.values())))

    @contextlib.asynccontextmanager
    async def opened(self, tasks: Sequence[Task], say: Say) -> AsyncIterator[None]:
        """Prepare the venues of these tasks; what they hold is released at the end of the block.

        Raises UserError.
        """
        self._quarantine.n_tasks = len(tasks)
        async with contextlib.AsyncExitStack() as stack:
            for name in dict.fromkeys(task.venue for task in tasks):
                here = [task for task in tasks if task.venue == name]
                await stack.enter_async_context(self._rooms[name].prepared(here, say))
            stack.push_async_callback(self.aclose)
            yield

    def expect(self, tasks: Sequence[Task]) -> None:
        """Announce trials of these tasks, next and in this order: what they need may be made ahead."""
        for name in dict.fromkeys(task.venue for task in tasks):
            self._rooms[name].expect([task for task in tasks if task.venue == name])

    @contextlib.asynccontextmanager
    async def supplied(self, group: GroupRequest) -> AsyncIterator[str]:
        """Wait for what the group's trials need, and keep it within the block; yields "", or why it cannot be had.

        Then a trial that did not run is recorded, and its task is left out of the run, unless a network was at fault.
        Raises EnvironmentFault when too many tasks lack it; Stopped.
        """
        n_done = len({TrialName.parse(name).first for name in group.done})
        if (known := self._attempts.unsupplied(group.task)) or n_done >= group.size:
            yield known
            return
        async with contextlib.AsyncExitStack() as held:
            supplied = held.enter_async_context(self._rooms[group.task.venue].supplied(group.task))
            try:
                lacking = await run_until(supplied, self._stop.stopped())
            except Stopped:  # its trials are not run
                lacking = ""
            if lacking:
                first = TrialName(group.kind, group.step, group.problem, 0)
                await self._attempts.leave_out(self._request(first, group), lacking)
            yield lacking

    async def aclose(self) -> None:
        """Wait for what the trials leave at their venues, and give up requests of cancelled trials. Safe to repeat."""
        await _gather(room.aclose() for room in self._rooms.values())
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
        requests = [
            GroupRequest(
                task, kind, step, problem, size=group_size, trials_dir=trials_dir, temperature=temperature,
                on_trajectory=on_trajectory, done=done, weights=weights,
            )
            for problem, task in enumerate(tasks_P)
        ]  # fmt: skip
        places = asyncio.Semaphore(at_once or len(tasks_P) or 1)

        async def run(request: GroupRequest) -> TrajectoryGroup:
            async with places, self.supplied(request) as lacking:
                if lacking:
                    return self.unsupplied(request, lacking)
                return await self.run_group(request, patience)

        try:
            groups_P = await _gather(map(run, requests))
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
            quiet = self._stop.asked or group.task.name in self._quarantine.reasons  # one line was said of it
            if trajectory.reward is None and not quiet:
                log.warning("trial %s is dropped: %s: %s", trajectory.trial_name, trajectory.outcome, trajectory.detail)
            return trajectory

        names = [TrialName(group.kind, group.step, group.problem, member) for member in range(group.size)]
        return group_trajectories(group.task.name, await _gather(map(fill, names)))

    def unsupplied(self, group: GroupRequest, lacking: str) -> TrajectoryGroup:
        """Return the group whose trials cannot be run."""
        name = str(TrialName(group.kind, group.step, group.problem, 0))
        lost = Trajectory(group.task.name, name, (), None, Outcome.INFRASTRUCTURE_ERROR, lacking)
        return group_trajectories(group.task.name, [lost])

    def hold_agents(self) -> None:
        """Let trials start their environments, but no agent begin, until `release_agents`."""
        self._settings.gates.weights.clear()

    def release_agents(self) -> None:
        self._settings.gates.weights.set()

    def write_job(self, trials_dir: Path, n_trials: int) -> None:
        """Write the venues' files of a batch with `n_trials` trials over those on disk. Blocks. Raises DiskFault."""
        for room in tuple(self._rooms.values()):
            room.close_batch(trials_dir, n_trials)

    def patience(self) -> Patience:
        """Make the patience with one batch: twice the trials that may run at once, on all hosts that have joined."""
        gates = self._gates

        def most() -> int:
            agents, places = gates.running.limit, gates.containers.limit
            return 2 * max(agents, agents * places // n_containers(self._settings.config))

        return Patience(most)

    def refuse_all_lost(self, groups_P: Sequence[TrajectoryGroup]) -> None:
        """Raise when all trials are lost, or the agent itself is at fault.

        A batch of one bad task does not stop a run in which another was graded.
        """
        trajectories = [t for group in groups_P for t in (*group.trajectories_G, *group.lost)]
        self._graded = self._graded or any(t.reward is not None for t in trajectories)
        one_task = len({t.task_name for t in trajectories}) == 1
        lost = [t for t in trajectories if t.outcome in (Outcome.INFRASTRUCTURE_ERROR, Outcome.CANCELLED)]
        if trajectories and len(lost) == len(trajectories) and not (self._graded and one_task):
            raise _refusal(lost)
        config = self._settings.config
        for agent in agents_of(config):
            check_agents([t for t in trajectories if drawn(config.agent, config.seed, t.trial_name) == agent])

    def _request(self, name: TrialName, group: GroupRequest) -> TrialRequest:
        seed = trial_seed(self._settings.config.seed, str(name))
        mode = "train" if name.kind == "step" else "eval"
        folder = group.trials_dir.resolve()
        return TrialRequest(str(name), group.task, folder, group.temperature, seed, mode=mode, weights=group.weights)


class _Rooms(dict[str, Room]):
    """The rooms of a run by the name of their venue, each made when it is first asked for."""

    def __init__(self, run: RunParts, venues: Mapping[str, Venue]) -> None:
        super().__init__()
        self._run, self._venues = run, venues

    def __missing__(self, name: str) -> Room:
        made = (self._venues[name] if name in self._venues else venue(name)).room(self._run)
        if not hasattr(made, "host"):
            raise wrong_answer(name, "room", made, "a harbortrainer.Room")
        self[name] = made
        return made


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
