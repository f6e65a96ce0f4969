"""Groups of trials from their start to the step that trains on them; beside the updates, as far as settings allow."""

import asyncio
import functools
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Self

from harbortrainer.learning.batch import has_signal
from harbortrainer.learning.pace import GroupSlot, OpenGroup, Pace
from harbortrainer.learning.trajectory import Trajectory, TrajectoryGroup, TrialName
from harbortrainer.learning.treatment import unfit
from harbortrainer.rollout.attempts import OnTrajectory
from harbortrainer.rollout.rollouts import GroupRequest, Rollouts
from harbortrainer.rollout.venue import STEPS_AHEAD
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.trajectories import read_batch, read_trajectory, write_trajectory
from harbortrainer.stopping import End, Stop, Stopped, cancel_all, run_until
from harbortrainer.tasks.task import Task
from harbortrainer.training.schedule import SettingsByStep


class Flow:
    """Starts groups in the order of tasks and gives each step its batch, by the rules of `Pace`.

    With max_steps_off_policy=0 only the groups of one batch are open, and a batch starts when its step asks for it.
    Otherwise groups of later batches run on during updates. A new flow continues with the trials on disk: steps that
    were composed before get the same groups again. Use it as a context: at its end all trials have ended.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        ledger: Ledger,
        stop: Stop,
        schedule: SettingsByStep,
        run: RunDirectory,
        show: OnTrajectory,
        ends: Callable[[], Iterable[End]],
    ) -> None:
        """`show` gets each finished trial, in a thread; `ends`: why waiting for trials may end early."""
        self._rollouts, self._ledger, self._stop, self._schedule = rollouts, ledger, stop, schedule
        self._run, self._show, self._ends = run, show, ends
        config = schedule.configs[-1]
        self._k, self._spare = config.max_steps_off_policy, config.oversample_max
        self._journalled = bool(self._k or self._spare)  # a step is not always made of its own batch
        # environments start ahead where they cost nothing; with max_trials the trials that started are to end
        self._prepares = config.local_environments and not self._k and not config.max_trials
        self._prepared = False
        self._size, self._groups = functools.cache(schedule.size), functools.cache(schedule.groups)
        self._pace = Pace(self._k, self._size, self._spare)
        self._frontier = max(ledger.composed, default=-1) + 1  # the first step that was never composed
        self._again: list[GroupSlot] | None = None  # the groups of a step that is made again
        self._patience = rollouts.patience()
        self._complete: dict[GroupSlot, TrajectoryGroup] = {}
        self._running: dict[GroupSlot, int] = {}  # trials that have not ended
        self._groups_left: dict[int, int] = {}  # of each batch that began
        self._begun: dict[GroupSlot, int] = {}  # of an earlier process: the oldest weights of their finished trials
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts = False  # whether groups are being started
        self._composing = False  # until the journal has the step: killed before, its groups need their places again
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks_of: dict[GroupSlot, str] = {}  # of groups that began
        self._unsupplied: set[str] = set()  # tasks that others have replaced

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._journalled:
            self._begun = await asyncio.to_thread(self._find_begun)
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_all([*self._tasks])
        self._rollouts.release_agents()
        for batch in self._groups_left:
            await self._write_job(batch)

    async def batch(self, step: int) -> list[TrajectoryGroup]:
        """Return the groups that `step` trains on, in the order of tasks, once their trials have ended.

        Raises EnvironmentFault or BackendError when no trial can be run; DiskFault; ServerLost; Stopped.
        """
        if not self._stop.may_continue():
            raise Stopped(self._stop.why)
        await self._begin(step)
        places = await run_until(self._composed(), self._stop.stopped(trials=True), *self._ends())
        groups_P = [self._complete.pop(place) for place in places]
        self._rollouts.refuse_all_lost(groups_P)
        if self._journalled and step >= self._frontier:
            await asyncio.to_thread(self._ledger.compose, step, places)
        self._composing = False
        self._changed.set()
        return groups_P

    def prepare(self) -> None:
        """Start the environments of the next batch during the update; their agents begin when `batch` asks for it."""
        step = self._pace.step + 1
        if self._prepares and step >= self._frontier and self._again is None and self._size(step):
            self._prepared, self._patience = True, self._rollouts.patience()
            self._rollouts.hold_agents()
            self._pace.look_ahead()
            self._changed.set()

    def published(self, step: int) -> None:
        """Note that the weights of `step` are published: beside training, groups start in the freed places."""
        if self._k:
            self._pace.advance(step)
            self._changed.set()

    @property
    def metrics(self) -> dict[str, float]:
        """Groups that run, and complete groups that wait for their step; none where no group outlives its step."""
        if not self._k:
            return {}
        return {
            "off_policy/groups_running": float(len(self._running)),
            "off_policy/groups_waiting": float(len(self._complete)),
        }

    async def _begin(self, step: int) -> None:
        if not self._prepared:
            self._patience = self._rollouts.patience()
        self._prepared = False
        self._rollouts.release_agents()
        known = {*self._begun, *self._ledger.step_of}
        self._pace.advance(step)
        self._again = self._ledger.composed[step] if step < self._frontier else None
        for place in self._again or ():
            await self._start(place, OpenGroup(place, step))
        if self._again is None:
            begun = [(place, self._pace.start(place, since)) for place, since in sorted(self._begun.items())]
            self._begun = {}
            for place, group in begun:  # all of them are open before any other group may start
                await self._start(place, group)
        if not self._starts:
            self._starts = True
            self._spawn(self._start_all(0 if self._journalled else step, known))
        self._changed.set()

    async def _composed(self) -> list[GroupSlot]:
        """The groups of this step, once they are complete. Raises what ended a group; Stopped once all have ended."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._stop.asked:  # what has not run to its end is no result
                if not self._running:
                    raise Stopped(self._stop.why)
            elif self._again is not None:
                if all(place in self._complete for place in self._again):
                    return self._again
            elif (places := self._pace.compose()) is not None:
                self._composing = True
                return places
            if not self._running and not self._may_start():
                raise AssertionError(f"step {self._pace.step} waits for nothing that runs: {self._pace.open}")
            self._changed.clear()
            await self._changed.wait()

    async def _start_all(self, batch: int, known: Collection[GroupSlot]) -> None:
        """Start the groups from `batch` on without `known` ones, each when the pace and a free environment allow it."""
        while size := self._groups(batch):
            ahead = self._schedule.ahead(batch, 1 + STEPS_AHEAD)
            for place in (GroupSlot(batch, problem) for problem in range(size)):
                if place in known:
                    continue
                while not self._may_start():
                    self._changed.clear()
                    await self._changed.wait()
                if ahead:
                    self._rollouts.expect(ahead)
                    ahead = []
                await self._start(place, self._pace.start(place))
            batch += 1

    def _may_start(self) -> bool:
        if self._stop.asked or self._again is not None or self._composing:
            return False
        return sum(self._running.values()) < self._rollouts.most_trials and self._pace.may_start()

    async def _start(self, place: GroupSlot, group: OpenGroup) -> None:
        self._running[place] = 1
        request = await asyncio.to_thread(self._request, place)
        self._tasks_of[place] = request.task.name
        self._groups_left.setdefault(place.batch, self._groups(place.batch))
        self._running[place] = request.size - len({TrialName.parse(name).first for name in request.done})
        self._spawn(self._run_group(request, place, group))

    async def _run_group(self, request: GroupRequest, place: GroupSlot, group: OpenGroup) -> None:
        try:
            result = await self._run_supplied(request, place)
        except BaseException as error:  # noted before the group counts as ended: the step that waits sees the cause
            self._failure = self._failure or error
            raise
        finally:
            del self._running[place]
        self._complete[place] = result
        config = self._schedule.at(self._pace.step).config
        self._pace.finish(group, constant=bool(self._spare) and not has_signal(result, config))
        self._changed.set()
        self._groups_left[place.batch] -= 1
        if not self._groups_left[place.batch]:
            del self._groups_left[place.batch]
            await self._write_job(place.batch)

    async def _run_supplied(self, request: GroupRequest, place: GroupSlot) -> TrajectoryGroup:
        """The group once its task's images are made; where they cannot be, or its first prompt is too long, the next
        task takes its place.
        """
        trials = self._running[place]
        while True:
            self._running[place] = 0  # it does not hold up groups whose images are ready
            async with self._rollouts.supplied(request) as lacking:
                if not lacking:
                    self._running[place] = trials
                    group = await self._rollouts.run_group(request, self._patience)
                    if not (lacking := unfit(group)):
                        return group
            self._unsupplied.add(request.task.name)
            here = [task for one, task in self._tasks_of.items() if one.batch == place.batch]
            other = self._schedule.instead(place.batch, {*self._unsupplied, *here})
            if other is None:
                return self._rollouts.unsupplied(request, lacking)
            self._tasks_of[place] = other.name
            request = await asyncio.to_thread(self._request, place, other)

    def _trial_ended(self, place: GroupSlot) -> None:
        if place in self._running:
            self._running[place] -= 1
            self._changed.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._failure = self._failure or failure
        self._changed.set()

    async def _write_job(self, batch: int) -> None:
        trials = self._groups(batch) * self._schedule.at(batch).config.group_size
        await asyncio.to_thread(self._rollouts.write_job, self._run.batch("step", batch), trials)

    def _find_begun(self) -> dict[GroupSlot, int]:
        """Groups with trials on disk that no step was composed of, and the oldest weights of these. Blocks."""
        found: dict[GroupSlot, int] = {}
        for path in sorted(self._run.trajectories("step", 0).parent.glob(f"step_{'[0-9]' * 6}/*.npz")):
            name = TrialName.parse(path.stem)
            place = GroupSlot(name.step, name.problem)
            if place in self._ledger.step_of:
                continue
            for trial in self._ledger.reusable("step", {path.stem: read_trajectory(path)}).values():
                versions = [turn.weights_version for turn in trial.turns]
                found |= {place: min([*versions, found.get(place, versions[0])])} if versions else {}
        return found

    def _request(self, place: GroupSlot, task: Task | None = None) -> GroupRequest:
        """`task`: None = that of an earlier process, else that of the order.

        Blocks. Raises UserError for a damaged trajectory, DiskFault.
        """
        config = self._schedule.at(self._pace.step).config
        folder = self._run.trajectories("step", place.batch)

        def ended(trajectory: Trajectory) -> None:
            write_trajectory(folder, trajectory)
            self._loop.call_soon_threadsafe(self._trial_ended, place)
            self._show(trajectory)

        task = task or self._schedule.named(self._ledger.task_of.get(place, ""))
        return GroupRequest(
            task or self._schedule.batch(place.batch)[place.problem],
            "step",
            step=place.batch,
            problem=place.problem,
            size=config.group_size,
            trials_dir=self._run.batch("step", place.batch),
            temperature=config.temperature,
            on_trajectory=ended,
            done=self._ledger.reusable("step", read_batch(folder, f"{place}-*")),
        )
