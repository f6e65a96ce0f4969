"""Where each trial is, told to whoever wants to show it: by default to nobody."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from src.learning.trajectory import Trajectory


class TrialState(StrEnum):
    STARTING = "starting"  # its environment, or the image of that
    WAITING = "waiting"  # for its turn: to run the agent, to be verified
    SAMPLING = "sampling"
    COMMAND = "in command"  # the agent works in the terminal
    VERIFYING = "verifying"


class Watcher(Protocol):
    """Called from any thread, some times a turn of every trial: it must be cheap, and neither block nor raise."""

    def moved(self, trial_name: str, state: TrialState | None) -> None:
        """None: the trial is over, whatever became of it."""
        ...

    def sampled(self, tokens: int) -> None: ...
    def replaced(self, trial_name: str) -> None:
        """By a fresh trial at the same place."""
        ...

    def kept(self, trajectory: Trajectory) -> None:
        """An earlier process ran it."""
        ...


class _Nobody:
    def moved(self, trial_name: str, state: TrialState | None) -> None: ...
    def sampled(self, tokens: int) -> None: ...
    def replaced(self, trial_name: str) -> None: ...
    def kept(self, trajectory: Trajectory) -> None: ...


UNWATCHED: Watcher = _Nobody()


@dataclass(frozen=True, slots=True)
class Watched:
    """One trial's line to the watcher; its policy tells when it is asked and when it has answered."""

    trial_name: str
    watcher: Watcher = UNWATCHED

    def moved(self, state: TrialState | None) -> None:
        self.watcher.moved(self.trial_name, state)

    def asked(self) -> None:
        self.moved(TrialState.SAMPLING)

    def answered(self, tokens: int) -> None:
        self.watcher.sampled(tokens)
        self.moved(TrialState.COMMAND)


NOT_WATCHED = Watched("")
