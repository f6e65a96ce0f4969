"""One place in a group: a trial, and a fresh one in its stead while faults keep it from a grade."""

import asyncio
import logging
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from harbortrainer.learning.trajectory import Outcome, Trajectory, TrialName
from harbortrainer.learning.treatment import AFTER_OUTAGE, FAULTS, OutcomePolicy
from harbortrainer.rollout.outcome import Quarantine
from harbortrainer.rollout.phases import TrialState
from harbortrainer.rollout.trial import TrialCancelled, TrialContext, TrialRequest, run_trial
from harbortrainer.stopping import Stop, Stopped, run_until

MAX_OUTAGES = 10  # of the daemon in one place's trials; each is waited for, and none counts as a fault of the trial
log = logging.getLogger("harbortrainer")

OnTrajectory = Callable[[Trajectory], None]


class TrialJournal(Protocol):
    """Where every trial that was started is written down. `started` and `ended` block.

    `tried`: how many trials ended at a place already, by earlier processes too, and how many of them cost an attempt.
    """

    def started(self, trial_name: str, task_name: str, attempt: int) -> None: ...
    def ended(self, trajectory: Trajectory, fate: str) -> None: ...
    def tried(self, place: str) -> tuple[int, int]: ...


class _Nobody:
    def started(self, trial_name: str, task_name: str, attempt: int) -> None: ...
    def ended(self, trajectory: Trajectory, fate: str) -> None: ...
    def tried(self, place: str) -> tuple[int, int]:
        return 0, 0


NO_JOURNAL = _Nobody()


class Attempts:
    def __init__(self, settings: TrialContext, quarantine: Quarantine, journal: TrialJournal, stop: Stop) -> None:
        self._settings = settings
        self._quarantine = quarantine
        self._journal = journal
        self._stop = stop
        self._most = settings.config.max_attempts

    async def fill(
        self, first: TrialRequest, policy: OutcomePolicy, note: OnTrajectory, keep: OnTrajectory
    ) -> Trajectory:
        """The trial that takes the place, or the last one that failed to; goes on where an earlier process was.

        `note` sees each trial, and may raise; `keep`, called in a thread, stores the last one before it is booked.
        A trial that an outage of the Docker daemon hit costs no attempt. Once the run is to stop, none is started.
        """
        tried, failed = self._journal.tried(first.name)
        outages = 0
        while True:
            tried += 1
            request = _numbered(first, tried, self._settings.config.seed)
            ran = await self._run(request)
            if ran is None:
                return _cancelled(request, self._why_not(request))
            trajectory, hit = ran
            replaced = policy.replaces(trajectory.outcome)
            if hit:
                outages += 1
            else:
                failed += replaced
                self._quarantine.note(trajectory)
            again = (
                replaced
                and failed < self._most
                and outages < MAX_OUTAGES
                and trajectory.task_name not in self._quarantine.reasons
            )
            fate = _replaced(first, tried, hit) if again else self._last_fate(trajectory)
            await _in_thread(self._end, trajectory, fate, None if again else keep)
            if not hit:
                note(trajectory)
            if not again:
                return trajectory
            self._settings.observer.replaced(request.name)
            log.warning("trial %s is replaced: %s: %s", request.name, trajectory.outcome, trajectory.detail)

    async def _run(self, request: TrialRequest) -> tuple[Trajectory, bool] | None:
        """The trial, and whether the daemon went away during it; None = it is not to be started any more."""
        gates, daemon, observer = self._settings.gates, self._settings.daemon, self._settings.observer
        async with gates.containers:
            try:
                await run_until(daemon.ready(), self._stop.stopped())
            except Stopped:
                return None
            if request.task.name in self._quarantine.reasons or not self._stop.may_start():
                return None
            before = daemon.outages
            observer.moved(request.name, TrialState.WAITING)
            try:
                await _in_thread(self._begin, request)
                trajectory = await run_trial(request, self._settings)
            except asyncio.CancelledError as error:
                turns = error.turns if isinstance(error, TrialCancelled) else ()
                self._journal.ended(replace(_cancelled(request, self._why_not(request)), turns=turns), "cancelled")
                raise asyncio.CancelledError(*error.args) from None  # asyncio.timeout knows no other kind
            finally:
                observer.moved(request.name, None)
        if trajectory.outcome in FAULTS:
            await daemon.suspect()
        return trajectory, daemon.outages > before

    def _why_not(self, request: TrialRequest) -> str:
        """Why a trial is not run, or not to its end."""
        if (reason := self._quarantine.reasons.get(request.task.name)) is not None:
            return f"its task is quarantined: {reason}"
        return f"the run was stopped{self._stop.why and ': '}{self._stop.why}"

    def _begin(self, request: TrialRequest) -> None:
        leftover = request.trials_dir / request.name  # of a process that was killed during this trial
        if leftover.exists():
            shutil.rmtree(leftover)
        self._journal.started(request.name, request.task.name, request.attempt)

    def _end(self, trajectory: Trajectory, fate: str, keep: OnTrajectory | None) -> None:
        if keep is not None:
            keep(trajectory)
        self._journal.ended(trajectory, fate)

    def _last_fate(self, trajectory: Trajectory) -> str:
        if trajectory.reward is not None:
            return "graded"
        return "quarantined" if trajectory.task_name in self._quarantine.reasons else "dropped"


async def _in_thread[*Args](call: Callable[[*Args], None], *args: *Args) -> None:
    """What is being written is written when this ends, also when it is cancelled."""
    writing = asyncio.create_task(asyncio.to_thread(call, *args))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait({writing})
        raise


def trial_seed(seed: int, name: str) -> int:
    return zlib.crc32(f"{seed}/{name}".encode())


def _name(first: TrialRequest, attempt: int) -> str:
    return str(replace(TrialName.parse(first.name), attempt=attempt))


def _replaced(first: TrialRequest, tried: int, hit: bool) -> str:
    fate = f"replaced by {_name(first, tried + 1)}"
    return f"{fate} {AFTER_OUTAGE}" if hit else fate


def _numbered(first: TrialRequest, attempt: int, seed: int) -> TrialRequest:
    name = _name(first, attempt)
    return replace(first, name=name, seed=trial_seed(seed, name), attempt=attempt)


def _cancelled(request: TrialRequest, why: str) -> Trajectory:
    return Trajectory(request.task.name, request.name, (), None, Outcome.CANCELLED, why, attempt=request.attempt)
