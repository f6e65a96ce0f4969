"""Fills one slot of a group, retrying with a fresh trial while infrastructure faults leave it ungraded."""

import asyncio
import contextlib
import logging
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from harbortrainer.learning.agents import drawn
from harbortrainer.learning.brought import function, with_reward
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrialName
from harbortrainer.learning.treatment import AFTER_OUTAGE, FAULTS, PASSING, UNFIT, UNSUPPLIED, OutcomePolicy
from harbortrainer.other_models.judge import Judge
from harbortrainer.rollout.gates import TrialState
from harbortrainer.rollout.quarantine import RETRIES, Quarantine, Retries, lost_to_server
from harbortrainer.rollout.venue import Host, Room, RunParts, TrialCancelled, TrialRequest, checked_trial
from harbortrainer.stopping import Stop, Stopped, run_until
from harbortrainer.tasks.task import Task

MAX_OUTAGES = 10  # of a venue's service or the server in one slot; a trial hit by one is replaced and costs no attempt
log = logging.getLogger("harbortrainer")

OnTrajectory = Callable[[Trajectory], None]


class TrialJournal(Protocol):
    """Records every trial. `started` and `ended` block. `quarantined`: tasks that were given up, and why."""

    quarantined: dict[str, str]

    def started(self, trial_name: str, task_name: str, attempt: int, host: str = "", agent: str = "") -> None:
        """Record that the trial is about to start on this host, "" = this machine;

        `agent` acts, "" = the policy alone.
        """

    def ended(self, trajectory: Trajectory, disposition: str) -> None:
        """`disposition`: graded, dropped, quarantined, cancelled, or "replaced by TRIAL"."""

    def attempts(self, first: str) -> tuple[int, int]:
        """Return trials that ended in the slot of the trial `first`, in any process, and those that cost an attempt."""
        return 0, 0


class _NoJournal(TrialJournal):
    """Records nothing."""

    def __init__(self) -> None:
        self.quarantined = {}


NO_JOURNAL = _NoJournal()


@dataclass(frozen=True, slots=True)
class Attempts:
    """Runs the trials of slots at the venues of their tasks, and records each in the journal."""

    settings: RunParts
    rooms: Mapping[str, Room]
    quarantine: Quarantine
    journal: TrialJournal
    stop: Stop
    judge: Judge | None = None  # of training; an evaluation never asks it
    retries: Retries = RETRIES

    async def fill(
        self, first: TrialRequest, policy: OutcomePolicy, note: OnTrajectory, keep: OnTrajectory
    ) -> Trajectory:
        """Get the trial that fills the slot of `first`, or the last one that failed to; continues an earlier process's.

        `note` sees each trial, and may raise; `keep`, called in a thread, stores the last one before it is recorded.
        A trial that an outage of its venue's service or of the server hit costs no attempt. Once the run is to stop,
        none is started.
        """
        attempt, failed = self.journal.attempts(first.name)
        outages = 0
        while True:
            attempt += 1
            request = self._numbered(first, attempt)
            ran = await self._run(request)
            if ran is None:
                return _cancelled(request, self._why_not(request), None)
            trajectory, hit_by_outage = ran
            fault = policy.replaces(trajectory.outcome)
            if hit_by_outage:
                outages += 1
            else:
                failed += fault
                self.quarantine.note(trajectory)
            quarantined = trajectory.task_name in self.quarantine.reasons
            retry = fault and not quarantined and failed < self.retries.attempts and outages < MAX_OUTAGES
            if retry:
                after = f" {AFTER_OUTAGE}" if hit_by_outage else ""
                disposition = f"replaced by {self._numbered(first, attempt + 1).name}{after}"
            elif trajectory.reward is not None:
                disposition = "graded"
            else:
                disposition = "quarantined" if quarantined else "dropped"
            trajectory = await self._judged(request, trajectory, disposition)
            unfit = trajectory.detail.startswith(UNFIT)
            replaced = retry or (unfit and request.mode == "train")  # by another task's trial
            await _in_thread(self._end, trajectory, disposition, None if replaced else keep)
            if unfit:
                self.quarantine.require_fitting(self.settings.config.context_limit)
            elif not hit_by_outage:
                note(trajectory)
            if not retry:
                return trajectory
            self.settings.observer.replaced(request.name)
            log.warning("trial %s is replaced: %s: %s", request.name, trajectory.outcome, trajectory.detail)

    def unsupplied(self, task: Task) -> str:
        """Return why an earlier group of the task could not be run; "" = none was refused."""
        _, _, reason = self.quarantine.reasons.get(task.name, "").partition(f"{Outcome.INFRASTRUCTURE_ERROR}: ")
        return reason if reason.startswith((UNSUPPLIED, UNFIT)) else ""

    async def leave_out(self, request: TrialRequest, why: str) -> None:
        """Record that the trials of a task cannot be run; it is left out of the run if no network was at fault."""
        attempt = self.journal.attempts(request.name)[0] + 1
        task, trial = request.task.name, self._numbered(request, attempt).name
        lost = Trajectory(task, trial, (), None, Outcome.INFRASTRUCTURE_ERROR, why, attempt=attempt)
        await _in_thread(self.journal.started, trial, task, attempt)
        passing = why.startswith(PASSING)
        await _in_thread(self.journal.ended, lost, "dropped" if passing else "quarantined")
        if not passing:
            self.quarantine.reasons.setdefault(request.task.name, f"{lost.outcome}: {why}")

    async def _run(self, request: TrialRequest) -> tuple[Trajectory, bool] | None:
        """The trial, and whether an outage of its host's service or the server hit it; None = it may not start."""
        room, observer = self.rooms[request.task.venue], self.settings.observer
        async with room.gate, contextlib.AsyncExitStack() as held:
            try:
                host = await run_until(_ready_host(room, held), self.stop.stopped())
            except Stopped:
                return None
            if request.task.name in self.quarantine.reasons or not self.stop.may_start():
                return None
            before, began, trajectory = host.outages, asyncio.get_running_loop().time(), None
            observer.moved(request.name, TrialState.WAITING)
            try:
                agent = drawn(room.agent, self.settings.config.seed, request.name)
                await _in_thread(self._begin, request, host.name, agent)
                trajectory = checked_trial(await host.run(request), request)
                if trajectory.outcome in FAULTS:
                    await host.suspect()
            except asyncio.CancelledError as error:
                spent = error if isinstance(error, TrialCancelled) else trajectory
                await self._end_cancelled(request, spent)
                if (task := asyncio.current_task()) is not None and not task.cancelling():
                    raise RuntimeError(f"{request.name}: its venue {request.task.venue} cancelled itself") from error
                raise asyncio.CancelledError(*error.args) from None  # asyncio.timeout knows no other kind
            finally:
                observer.moved(request.name, None)
        patience = self.settings.config.outage_limit_sec
        away = lost_to_server(trajectory) and self.settings.sampler.server_away(began, patience)
        return trajectory, host.outages > before or away

    async def _judged(self, request: TrialRequest, trajectory: Trajectory, disposition: str) -> Trajectory:
        """The trial with what shapes its reward, once it holds no slot any more: of training, and with a grade."""
        if request.mode != "train" or disposition != "graded":
            return trajectory
        try:
            judged = await self.judge.shaped(trajectory) if self.judge is not None else trajectory
            if (name := self.settings.config.reward) is None:
                return judged
            return await asyncio.to_thread(with_reward, function("reward", name), judged)
        except asyncio.CancelledError:
            await self._end_cancelled(request, trajectory)
            raise

    async def _end_cancelled(self, request: TrialRequest, spent: TrialCancelled | Trajectory | None) -> None:
        await _in_thread(self.journal.ended, _cancelled(request, self._why_not(request), spent), "cancelled")

    def _why_not(self, request: TrialRequest) -> str:
        """Why a trial is not run, or not to its end."""
        if (reason := self.quarantine.reasons.get(request.task.name)) is not None:
            return f"its task is quarantined: {reason}"
        return f"the run was stopped{self.stop.why and ': '}{self.stop.why}"

    def _begin(self, request: TrialRequest, host: str, agent: str) -> None:
        leftover = request.trials_dir / request.name  # of a process that was killed during this trial
        if leftover.exists():
            shutil.rmtree(leftover)
        self.journal.started(request.name, request.task.name, request.attempt, host, agent)

    def _end(self, trajectory: Trajectory, disposition: str, keep: OnTrajectory | None) -> None:
        if keep is not None:
            keep(trajectory)
        self.journal.ended(trajectory, disposition)

    def _numbered(self, first: TrialRequest, attempt: int) -> TrialRequest:
        name = str(replace(TrialName.parse(first.name), attempt=attempt))
        return replace(first, name=name, seed=trial_seed(self.settings.config.seed, name), attempt=attempt)


async def _ready_host(room: Room, held: contextlib.AsyncExitStack) -> Host:
    """A host that can start a trial now, until `held` is closed. Raises EnvironmentFault."""
    host = await held.enter_async_context(room.host())
    await host.ready()
    return host


async def _in_thread[*Args](call: Callable[[*Args], None], *args: *Args) -> None:
    """Run a write in a thread; it is complete when this returns, even when cancelled."""
    writing = asyncio.create_task(asyncio.to_thread(call, *args))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait({writing})
        raise


def trial_seed(seed: int, name: str) -> int:
    return zlib.crc32(f"{seed}/{name}".encode())


def _cancelled(request: TrialRequest, why: str, spent: TrialCancelled | Trajectory | None) -> Trajectory:
    """`spent`: has what was sampled before, and the tokens of a simulated user; None = nothing."""
    turns, stats = (spent.turns, spent.stats) if spent is not None else ((), {})
    task, attempt = request.task.name, request.attempt
    return Trajectory(task, request.name, turns, None, Outcome.CANCELLED, why, attempt=attempt, stats=stats)
