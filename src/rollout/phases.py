"""One trial's way through the gates, by Harbor's hooks: a phase waits for its place, and the trial's clock with it."""

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from src.rollout.boundary import boundary
from src.rollout.docker.environment import DockerEngineEnvironment
from src.rollout.docker.health import Daemon
from src.rollout.gates import Gates
from src.rollout.states import NOT_WATCHED, TrialState, Watched

if TYPE_CHECKING:  # slow to import
    from harbor.trial.trial import Trial

VERIFIER_SLACK_SEC = 15.0  # on top of the verifier's own limit: copying files, tear-down


class HasDeadline(Protocol):
    deadline: float | None


class Phases:
    """`clock` is the limit of the whole trial; waiting for a place stops it. `waited`: seconds at all gates."""

    def __init__(
        self,
        trial: "Trial",
        llm: HasDeadline,
        gates: Gates,
        daemon: Daemon,
        limit_sec: float,
        watched: Watched = NOT_WATCHED,
    ) -> None:
        from harbor.trial.hooks import TrialEvent

        self.clock = asyncio.timeout(limit_sec or None)
        self.waited = 0.0
        self._trial = trial
        self._llm = llm
        self._gates = gates
        self._daemon = daemon
        self._watched = watched
        self._reserve = _reserve(limit_sec, trial.verifier_timeout_sec)
        self._held: asyncio.Semaphore | None = None
        self._starting: float | None = None  # since when it holds a place among the starting
        self._n_agent_phases = 0
        trial.add_hook(TrialEvent.ENVIRONMENT_START, self._before_start)
        trial.add_hook(TrialEvent.AGENT_START, self._before_agent)
        trial.add_hook(TrialEvent.AGENT_END, self._after_agent)
        trial.add_hook(TrialEvent.VERIFICATION_START, self._before_verifier)

    def leave(self) -> None:
        """Give back whatever place is held. Safe to repeat."""
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
        self._watched.moved(TrialState.STARTING)

    @boundary
    async def _before_agent(self, _: object) -> None:
        if self._starting is not None:
            self._gates.starting.release(time.monotonic() - self._starting)
            self._starting = None
        await self._enter(self._gates.running)
        self._watched.moved(TrialState.COMMAND)
        self._n_agent_phases += 1
        if (due := self.clock.when()) is not None:
            self._llm.deadline = due - self._reserve
        if isinstance(environment := self._trial.agent_environment, DockerEngineEnvironment):
            await environment.open_agent_phase()

    @boundary
    async def _after_agent(self, _: object) -> None:
        self.leave()

    @boundary
    async def _before_verifier(self, _: object) -> None:
        await self._enter(self._gates.verifying)
        self._watched.moved(TrialState.VERIFYING)
        environment = self._trial.agent_environment
        if isinstance(environment, DockerEngineEnvironment) and self._verified_inside():
            steps = self._trial.task.config.steps or ()
            await environment.close_agent_phase(final=self._n_agent_phases >= len(steps))

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
        self._watched.moved(TrialState.WAITING)
        await self._wait(gate.acquire())
        self._held = gate

    async def _wait(self, turn) -> None:
        """Await `turn` with the clock stopped; cancelled, the clock does not matter any more."""
        began, due = time.monotonic(), self.clock.when()
        self.clock.reschedule(None)
        await turn
        waited = time.monotonic() - began
        self.waited += waited
        if due is not None:
            self.clock.reschedule(due + waited)


def _reserve(limit_sec: float, verifier_timeout_sec: float) -> float:
    """Part of a trial's time that the agent has to leave to the verifier."""
    return min(verifier_timeout_sec + VERIFIER_SLACK_SEC, limit_sec / 4)
