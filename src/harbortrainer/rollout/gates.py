"""States of a trial, their observer, and the limits on concurrency of a run."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from harbortrainer.config import Config
from harbortrainer.learning.trajectory import Trajectory
from harbortrainer.policy.conversation import Listener
from harbortrainer.rollout.slots import Slots

STARTS, STARTS_PER_CPU = 8, 2  # environments that start at once: beyond the processors' number they only wait


class TrialState(StrEnum):
    STARTING = "starting"  # its environment, or the environment's image
    WAITING = "waiting"  # for a slot: to run the agent, to be verified
    SAMPLING = "sampling"
    COMMAND = "in command"  # the agent works in the terminal
    VERIFYING = "verifying"


class TrialObserver:
    """An observer, called from any thread, several times in every turn: calls must be cheap, and neither block nor
    raise.

    This one ignores every call.
    """

    def moved(self, trial_name: str, state: TrialState | None) -> None:
        """Note the state of a trial; None: it has ended."""

    def sampled(self, tokens: int) -> None:
        """Note tokens that the policy sampled in one turn of any trial."""

    def replaced(self, trial_name: str) -> None:
        """Note that a fresh trial takes the slot of this one."""

    def kept(self, trajectory: Trajectory) -> None:
        """Note a trial that an earlier process ran."""

    def hosts(self, trials: Mapping[str, tuple[int, int]], lost: int) -> None:
        """Note by name of a host its trials now and its places; hosts lost so far."""


UNOBSERVED = TrialObserver()


@dataclass(frozen=True, slots=True)
class ObservedTrial(Listener):
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

    containers: Slots
    starting: Slots
    running: Slots
    verifying: Slots
    weights: asyncio.Event  # set: agents may begin

    @classmethod
    def of(cls, config: Config) -> "Gates":
        """Return the limits that the settings say."""
        starts = STARTS_PER_CPU * (os.cpu_count() or 1) if config.local_environments else 0
        weights = asyncio.Event()
        weights.set()
        return cls(
            containers=Slots(n_containers(config)),
            starting=Slots(max(STARTS, starts)),
            running=Slots(config.n_parallel_envs),
            verifying=Slots(config.n_parallel_envs),
            weights=weights,
        )


def n_containers(config: Config) -> int:
    """Return the most environments at once: those whose agent runs or that are verified, and those started ahead."""
    agents = config.n_parallel_envs
    warm = -(-agents // 4) if config.local_environments else 0  # in a cloud they cost money from their start
    return agents + warm
