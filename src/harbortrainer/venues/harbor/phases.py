"""The phases of a Harbor trial: the hooks that apply the limits on concurrency and report its state."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from harbortrainer.docker.daemon import Daemon
from harbortrainer.docker.integrity.cause import Verdict
from harbortrainer.docker.keeping.removals import removals
from harbortrainer.harbor import boundary
from harbortrainer.policy.clock import Clock
from harbortrainer.rollout.gates import Gates, ObservedTrial, TrialState
from harbortrainer.rollout.slots import Slots
from harbortrainer.venues.harbor.container_agent import ContainerSession, Policy, answering

if TYPE_CHECKING:  # slow to import
    from harbor.trial.trial import Trial

    from harbortrainer.docker.box.artifacts import CollectedEnvironment
    from harbortrainer.docker.box.environment import DockerEngineEnvironment


GRADING_SLACK_SEC = 120.0  # between the agent's end and the start of Harbor's limit on verification
VERIFIER_SLACK_SEC = 15.0  # on top of the verifier's own limit: copying files, tear-down
UNNAMED = ObservedTrial("")


class Phases:
    """Harbor hooks that make each phase of a trial wait for a concurrency slot; the trial's clock is paused meanwhile.

    `policy`: what the agent asks, None = a script acts. `clock`: the limit of the whole trial; `waited`: seconds at all
    gates.
    """

    def __init__(
        self,
        trial: "Trial",
        policy: Policy | None,
        gates: Gates,
        daemon: Daemon,
        limit_sec: float,
        observed: ObservedTrial = UNNAMED,
    ) -> None:
        from harbor.trial.hooks import TrialEvent

        self.clock = Clock.of(limit_sec, answering(policy).lost if policy else lambda: 0.0)
        self.waited = 0.0
        self._trial = trial
        self._policy = policy
        self._gates = gates
        self._daemon = daemon
        self._observed = observed
        # the part of the trial's time that the agent has to leave to the verifier
        self._reserve = min(trial.task.config.verifier.timeout_sec + VERIFIER_SLACK_SEC, limit_sec / 4)
        self._held: Slots | None = None
        self._lent = 0.0  # seconds beyond the trial's limit, for verifications alone
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

    @boundary
    async def _before_start(self, _: object) -> None:
        await self._wait(self._daemon.ready())
        await self._enter(self._gates.starting)
        await self._wait(removals().room())
        self._observed.moved(TrialState.STARTING)

    @boundary
    async def _before_agent(self, _: object) -> None:
        self.leave()
        if not self._gates.weights.is_set():
            self._observed.moved(TrialState.WAITING)
            await self._wait(self._gates.weights.wait())
        await self._enter(self._gates.running)
        self._observed.moved(TrialState.COMMAND)
        self._n_agent_phases += 1
        if self._policy is not None:
            answering(self._policy).deadline = self._agents_deadline()
        if environment := self._engine_environment():
            await environment.open_agent_phase()
            if isinstance(self._policy, ContainerSession):
                await self._policy.open(environment.container)

    def _agents_deadline(self) -> float | None:
        """By the task's own limit, and in time for the verifier; None = none."""
        config = self._trial.task.config
        due = None if self.clock.due is None else self.clock.due - self._lent
        of_step = config.steps[self._n_agent_phases - 1].agent.timeout_sec if config.steps else None
        own = config.agent.timeout_sec if of_step is None else of_step
        ends = [] if due is None else [due - self._reserve]
        ends += [] if own is None else [asyncio.get_running_loop().time() + own]
        return min(ends, default=None)

    @boundary
    async def _after_agent(self, _: object) -> None:
        self.leave()
        if environment := self._collected_environment():
            environment.graded_elsewhere = not self._verified_inside()
        if (due := self.clock.due) is not None:  # who hangs verification until the trial is over would have no grade
            own = self._trial.verifier_timeout_sec + GRADING_SLACK_SEC
            self.clock.due = max(due, asyncio.get_running_loop().time() + own)
            self._lent += self.clock.due - due
        if isinstance(self._policy, ContainerSession):
            await self._policy.close()

    @boundary
    async def _before_verifier(self, _: object) -> None:
        await self._enter(self._gates.verifying)
        self._observed.moved(TrialState.VERIFYING)
        if not self._verified_inside():
            if (collected := self._collected_environment()) and collected.lost:
                raise RuntimeError(collected.lost)  # a verifier elsewhere would grade an empty folder
        elif environment := self._engine_environment():
            steps = self._trial.task.config.steps or ()
            await environment.close_agent_phase(final=self._n_agent_phases >= len(steps))

    @property
    def verdict(self) -> Verdict:
        """What verifications said besides the reward."""
        environment = self._engine_environment()
        return environment.verdict if environment else Verdict()

    def _collected_environment(self) -> "CollectedEnvironment | None":
        from harbortrainer.docker.box.artifacts import CollectedEnvironment

        environment = self._trial.agent_environment
        return environment if isinstance(environment, CollectedEnvironment) else None

    def _engine_environment(self) -> "DockerEngineEnvironment | None":
        from harbortrainer.docker.box.environment import DockerEngineEnvironment

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

    async def _enter(self, gate: Slots) -> None:
        self.leave()
        self._observed.moved(TrialState.WAITING)
        await self._wait(gate.acquire())
        self._held = gate

    async def _wait(self, turn: Awaitable[object]) -> None:
        """Await `turn` with the clock stopped."""
        began, due = time.monotonic(), self.clock.due
        self.clock.due = None
        await turn
        waited = time.monotonic() - began
        self.waited += waited
        if due is not None:
            self.clock.due = due + waited
