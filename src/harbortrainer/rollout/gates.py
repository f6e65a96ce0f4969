"""States of a trial, their observer, and the limits on concurrency of a run."""

import asyncio
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from harbortrainer.config import Config
from harbortrainer.learning.trajectory import Trajectory
from harbortrainer.rollout.start_limit import FIRST, StartLimit, most_starts


class TrialState(StrEnum):
    STARTING = "starting"  # its environment, or the environment's image
    WAITING = "waiting"  # for a slot: to run the agent, to be verified
    SAMPLING = "sampling"
    COMMAND = "in command"  # the agent works in the terminal
    VERIFYING = "verifying"


class TrialObserver(Protocol):
    """Called from any thread, several times in every turn: calls must be cheap, and neither block nor raise."""

    def moved(self, trial_name: str, state: TrialState | None) -> None:
        """None: the trial has ended."""

    def sampled(self, tokens: int) -> None:
        """By the policy, in one turn of any trial."""

    def replaced(self, trial_name: str) -> None:
        """By a fresh trial in the same slot."""

    def kept(self, trajectory: Trajectory) -> None:
        """An earlier process ran it."""


class _NoObserver(TrialObserver):
    """Ignores every call."""


UNOBSERVED = _NoObserver()


@dataclass(frozen=True, slots=True)
class ObservedTrial:
    """Reports the states of one trial; its policy reports each request and each answer."""

    trial_name: str
    observer: TrialObserver = UNOBSERVED

    def moved(self, state: TrialState | None) -> None:
        self.observer.moved(self.trial_name, state)

    def asked(self) -> None:
        self.moved(TrialState.SAMPLING)

    def answered(self, tokens: int) -> None:
        self.observer.sampled(tokens)
        self.moved(TrialState.COMMAND)


@dataclass(frozen=True, slots=True)
class Gates:
    """Concurrency limits of a run. A trial holds a container slot throughout, and one of the others at a time."""

    containers: asyncio.Semaphore
    starting: StartLimit
    running: asyncio.Semaphore
    verifying: asyncio.Semaphore

    @classmethod
    def of(cls, config: Config) -> "Gates":
        most = most_starts(os.cpu_count() or 1) if config.local_environments else FIRST
        return cls(
            containers=asyncio.Semaphore(n_containers(config)),
            starting=StartLimit(most),
            running=asyncio.Semaphore(config.n_parallel_envs),
            verifying=asyncio.Semaphore(config.n_parallel_envs),
        )


def n_containers(config: Config) -> int:
    """The most environments at once: those whose agent runs or that are verified, and those started ahead."""
    warm = config.n_warm_envs
    if warm is None:  # environments in a cloud cost money from their start
        warm = -(-config.n_parallel_envs // 4) if config.local_environments else 0
    return config.n_parallel_envs + warm
