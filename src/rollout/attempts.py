"""One place in a group: a trial, and a fresh one in its stead while faults keep it from a grade."""

import asyncio
import logging
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from src.learning.trajectory import Outcome, Trajectory
from src.learning.treatment import FAULTS, OutcomePolicy
from src.rollout.quarantine import Quarantine
from src.rollout.trial import TrialRequest, TrialSettings, run_trial

MAX_OUTAGES = 10  # of the daemon in one place's trials; each is waited for, and none counts as a fault of the trial
log = logging.getLogger("harbortrainer")

OnTrajectory = Callable[[Trajectory], None]


class Book(Protocol):
    """Where every trial that was started is written down. Both calls block."""

    def started(self, trial_name: str, task_name: str, attempt: int) -> None: ...
    def ended(self, trajectory: Trajectory, fate: str) -> None: ...


class _Nobody:
    def started(self, trial_name: str, task_name: str, attempt: int) -> None: ...
    def ended(self, trajectory: Trajectory, fate: str) -> None: ...


NOBODY = _Nobody()


class Attempts:
    def __init__(self, settings: TrialSettings, quarantine: Quarantine, book: Book) -> None:
        self._settings = settings
        self._quarantine = quarantine
        self._book = book
        self._most = settings.config.max_attempts

    async def fill(
        self, first: TrialRequest, policy: OutcomePolicy, note: OnTrajectory, keep: OnTrajectory
    ) -> Trajectory:
        """The trial that takes the place, or the last one that failed to.

        `note` sees each trial, and may raise; `keep`, called in a thread, stores the last one before it is booked.
        A trial that an outage of the Docker daemon hit costs no attempt.
        """
        tried = faults = outages = 0
        while True:
            tried += 1
            request = _numbered(first, tried, self._settings.config.seed)
            ran = await self._run(request)
            if ran is None:
                return _cancelled(request, f"its task is quarantined: {self._quarantine.reasons[first.task.name]}")
            trajectory, hit = ran
            if hit:
                outages += 1
            else:
                faults += trajectory.reward is None
                self._quarantine.note(trajectory)
            again = (
                policy.replaces(trajectory.outcome)
                and faults < self._most
                and outages < MAX_OUTAGES
                and trajectory.task_name not in self._quarantine.reasons
            )
            fate = f"replaced by {_name(first, tried + 1)}" if again else self._last_fate(trajectory)
            await asyncio.to_thread(self._end, trajectory, fate, None if again else keep)
            if not hit:
                note(trajectory)
            if not again:
                return trajectory
            log.warning("trial %s is replaced: %s: %s", request.name, trajectory.outcome, trajectory.detail)

    async def _run(self, request: TrialRequest) -> tuple[Trajectory, bool] | None:
        """The trial, and whether the daemon went away during it; None = its task was quarantined meanwhile."""
        gates, daemon = self._settings.gates, self._settings.daemon
        async with gates.containers:
            if request.task.name in self._quarantine.reasons:
                return None
            await daemon.ready()
            before = daemon.outages
            await asyncio.to_thread(self._begin, request)
            try:
                trajectory = await run_trial(request, self._settings)
            except asyncio.CancelledError:
                self._book.ended(_cancelled(request, "the run was stopped"), "cancelled")
                raise
        if trajectory.outcome in FAULTS:
            await daemon.suspect()
        return trajectory, daemon.outages > before

    def _begin(self, request: TrialRequest) -> None:
        leftover = request.trials_dir / request.name  # of a process that was killed during this trial
        if leftover.exists():
            shutil.rmtree(leftover)
        self._book.started(request.name, request.task.name, request.attempt)

    def _end(self, trajectory: Trajectory, fate: str, keep: OnTrajectory | None) -> None:
        if keep is not None:
            keep(trajectory)
        self._book.ended(trajectory, fate)

    def _last_fate(self, trajectory: Trajectory) -> str:
        if trajectory.reward is not None:
            return "graded"
        return "quarantined" if trajectory.task_name in self._quarantine.reasons else "dropped"


def trial_seed(seed: int, name: str) -> int:
    return zlib.crc32(f"{seed}/{name}".encode())


def takes_place_of(name: str, first: str) -> bool:
    """Whether the trial `name` is `first` or one that was run in its stead."""
    return name == first or (name.startswith(f"{first}-a") and name.removeprefix(f"{first}-a").isdigit())


def _name(first: TrialRequest, attempt: int) -> str:
    return first.name if attempt == 1 else f"{first.name}-a{attempt}"


def _numbered(first: TrialRequest, attempt: int, seed: int) -> TrialRequest:
    name = _name(first, attempt)
    return replace(first, name=name, seed=trial_seed(seed, name), attempt=attempt)


def _cancelled(request: TrialRequest, why: str) -> Trajectory:
    return Trajectory(request.task.name, request.name, (), None, Outcome.CANCELLED, why, attempt=request.attempt)
