"""The phases of a trial: the observer of trial states, the limits on concurrency, and the hooks that apply them."""

import asyncio
import os
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from harbortrainer.config import Config
from harbortrainer.docker.daemon import Daemon
from harbortrainer.docker.removals import removals
from harbortrainer.harbor import boundary
from harbortrainer.learning.trajectory import Trajectory
from harbortrainer.rollout.start_limit import FIRST, StartLimit, most_starts

if TYPE_CHECKING:  # slow to import
    from harbor.trial.trial import Trial

    from harbortrainer.docker.environment import DockerEngineEnvironment


VERIFIER_SLACK_SEC = 15.0  # on top of the verifier's own limit: copying files, tear-down


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
    weights: asyncio.Event  # set: agents may begin

    @classmethod
    def of(cls, config: Config) -> "Gates":
        most = most_starts(os.cpu_count() or 1) if config.environment_type == "docker" else FIRST
        weights = asyncio.Event()
        weights.set()
        return cls(
            containers=asyncio.Semaphore(n_containers(config)),
            starting=StartLimit(most),
            running=asyncio.Semaphore(config.n_parallel_envs),
            verifying=asyncio.Semaphore(config.n_parallel_envs),
            weights=weights,
        )


def n_containers(config: Config) -> int:
    """The most environments at once: those whose agent runs or that are verified, and those started ahead."""
    warm = config.n_warm_envs
    if warm is None:  # environments in a cloud cost money from their start
        warm = -(-config.n_parallel_envs // 4) if config.environment_type == "docker" else 0
    return config.n_parallel_envs + warm


def starts_ahead(config: Config) -> bool:
    """Whether environments start before an agent can use them."""
    return config.environment_type == "docker" if config.n_warm_envs is None else config.n_warm_envs > 0


class HasDeadline(Protocol):
    deadline: float | None


class Phases:
    """Harbor hooks that make each phase of a trial wait for a concurrency slot; the trial's clock is paused meanwhile.

    `clock`: the limit of the whole trial; `waited`: seconds at all gates; `prepared`: seconds between the end of the
    agent's phases and the start of verification, waits included.
    """

    def __init__(
        self,
        trial: "Trial",
        llm: HasDeadline,
        gates: Gates,
        daemon: Daemon,
        limit_sec: float,
        observed: ObservedTrial = ObservedTrial(""),
    ) -> None:
        from harbor.trial.hooks import TrialEvent

        self.clock = asyncio.timeout(limit_sec or None)
        self.waited = self.prepared = 0.0
        self._trial = trial
        self._llm = llm
        self._gates = gates
        self._daemon = daemon
        self._observed = observed
        # the part of the trial's time that the agent has to leave to the verifier
        self._reserve = min(trial.verifier_timeout_sec + VERIFIER_SLACK_SEC, limit_sec / 4)
        self._held: asyncio.Semaphore | None = None
        self._starting: float | None = None  # when it took its slot among the starting
        self._n_agent_phases = 0
        trial.add_hook(TrialEvent.ENVIRONMENT_START, self._before_start)
        trial.add_hook(TrialEvent.AGENT_START, self._before_agent)
        trial.add_hook(TrialEvent.AGENT_END, self._after_agent)
        trial.add_hook(TrialEvent.VERIFICATION_START, self._before_verifier)

    def leave(self) -> None:
        """Release the slots that are held. Safe to repeat."""
        if self._held is not None:
            self._held.release()
            self._held = None
        if self._starting is not None:
            self._gates.starting.release()
            self._starting = None

    @boundary
    async def _before_start(self, _: object) -> None:
        await self._wait(self._daemon.ready())
        await self._wait(self._gates.starting.acquire())
        self._starting = time.monotonic()
        await self._wait(removals().room())
        self._starting = time.monotonic()
        self._observed.moved(TrialState.STARTING)

    @boundary
    async def _before_agent(self, _: object) -> None:
        if self._starting is not None:
            self._note_start(time.monotonic() - self._starting)
            self._starting = None
        if not self._gates.weights.is_set():
            self._observed.moved(TrialState.WAITING)
            await self._wait(self._gates.weights.wait())
        await self._enter(self._gates.running)
        self._observed.moved(TrialState.COMMAND)
        self._n_agent_phases += 1
        if (due := self.clock.when()) is not None:
            self._llm.deadline = due - self._reserve
        if environment := self._engine_environment():
            await environment.open_agent_phase()

    def _note_start(self, seconds: float) -> None:
        """`seconds`: since it got its slot. Image and terminal are part of them, so a container's own time counts."""
        if (environment := self._engine_environment()) and environment.start_seconds is not None:
            self._gates.starting.release(environment.start_seconds, disturbed=environment.start_disturbed)
        else:
            self._gates.starting.release(seconds)

    @boundary
    async def _after_agent(self, _: object) -> None:
        self.leave()

    @boundary
    async def _before_verifier(self, _: object) -> None:
        began = time.monotonic()
        await self._enter(self._gates.verifying)
        self._observed.moved(TrialState.VERIFYING)
        if (environment := self._engine_environment()) and self._verified_inside():
            steps = self._trial.task.config.steps or ()
            await environment.close_agent_phase(final=self._n_agent_phases >= len(steps))
        self.prepared += time.monotonic() - began

    @property
    def put_back(self) -> tuple[str, ...]:
        """System paths that were restored before verification."""
        environment = self._engine_environment()
        return environment.put_back if environment else ()

    def _engine_environment(self) -> "DockerEngineEnvironment | None":
        from harbortrainer.docker.environment import DockerEngineEnvironment

        environment = self._trial.agent_environment
        return environment if isinstance(environment, DockerEngineEnvironment) else None

    def _verified_inside(self) -> bool:
        """Whether the verifier is about to run in the agent's own environment."""
        from harbor.models.task.verifier_mode import (
            VerifierEnvironmentMode,
            resolve_step_verifier_mode,
            resolve_task_verifier_mode,
        )

        config = self._trial.task.config
        if config.steps:
            mode = resolve_step_verifier_mode(config, config.steps[self._n_agent_phases - 1])
        else:
            mode = resolve_task_verifier_mode(config)
        return mode is VerifierEnvironmentMode.SHARED

    async def _enter(self, gate: asyncio.Semaphore) -> None:
        self.leave()
        self._observed.moved(TrialState.WAITING)
        await self._wait(gate.acquire())
        self._held = gate

    async def _wait(self, turn: Awaitable[object]) -> None:
        """Await `turn` with the clock stopped."""
        began, due = time.monotonic(), self.clock.when()
        self.clock.reschedule(None)
        await turn
        waited = time.monotonic() - began
        self.waited += waited
        if due is not None:
            self.clock.reschedule(due + waited)
