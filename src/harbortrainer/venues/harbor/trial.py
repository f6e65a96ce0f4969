"""One Harbor trial: container, agent, verifier -> one trajectory, whatever fails in between."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from harbortrainer.config import Config
from harbortrainer.docker.daemon import Daemon
from harbortrainer.docker.keeping import cleaning
from harbortrainer.docker.keeping.disk_guard import eviction_reason
from harbortrainer.durable.disk import disk_errors, refuse, require_writable
from harbortrainer.harbor import MODE, forget_loggers, hasten_task_files, noting, raise_noted
from harbortrainer.learning.agents import of_trial
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn
from harbortrainer.learning.treatment import FAULTS
from harbortrainer.policy.conversation import Conversation
from harbortrainer.policy.tinker_llm import TinkerLLM, registered
from harbortrainer.rollout.fleet import FleetHost
from harbortrainer.rollout.gates import ObservedTrial
from harbortrainer.rollout.venue import RunParts, TrialCancelled, TrialRequest, conversing
from harbortrainer.tasks.folders import folder_of
from harbortrainer.venues.harbor.container_agent import ContainerService, ContainerSession, Policy, agent_of, answering
from harbortrainer.venues.harbor.depends import read_names
from harbortrainer.venues.harbor.grading import VERIFIER, most_limits, unasked
from harbortrainer.venues.harbor.install import failed_install
from harbortrainer.venues.harbor.outcome import Verdict, classify, recorded
from harbortrainer.venues.harbor.phases import Phases

if TYPE_CHECKING:  # slow to import
    from harbor.models.trial.config import AgentConfig, TrialConfig
    from harbor.models.trial.result import TrialResult
    from harbor.trial.trial import Trial

LATER = 1000.0  # times a task's limit on its agent, for Harbor, whose clock cannot stand still: `Phases` applies it
CLEANUP_LIMIT_SEC = 120.0  # for a cancelled trial to remove its container; after that the reaper does


async def new_trial(config: "TrialConfig") -> "Trial":
    from harbor.trial.trial import Trial

    hasten_task_files()
    return await Trial.create(config)


NewTrial = Callable[["TrialConfig"], Awaitable["Trial"]]


@dataclass(eq=False)
class LocalHost(FleetHost):
    """A host in this process, on the daemon that DOCKER_HOST names or at a sandbox service."""

    parts: RunParts
    daemon: Daemon
    new_trial: NewTrial = new_trial
    agents: ContainerService | None = None  # None = Terminus-2, in this process

    @property
    def places(self) -> int:
        return self.parts.gates.containers.limit

    @property
    def outages(self) -> int:
        """Of the daemon."""
        return self.daemon.outages

    async def ready(self) -> None:
        await self.daemon.ready()

    async def suspect(self) -> None:
        await self.daemon.suspect()

    async def run(self, request: TrialRequest) -> Trajectory:
        """Run one trial within `trial_timeout_sec`, not counting waits for slots, and grade what the policy did.

        Faults become the trajectory's outcome. Raises only TrialCancelled, once the trial has stopped its environment,
        UserError of the environment, DiskFault, and errors in this package.
        """
        folder = request.trials_dir / request.name
        async with self._policy(request) as policy:
            said = answering(policy)
            with forget_loggers(request.name), disk_errors(folder), registered(request.name, policy):
                try:
                    (outcome, detail, reward), times = await _run(request, self, policy)
                except asyncio.CancelledError:
                    raise TrialCancelled(tuple(said.turns)) from None
        if outcome in FAULTS:  # a full disk may be the real cause: then nothing can be kept
            await asyncio.to_thread(require_writable, request.trials_dir)
        depends = await asyncio.to_thread(read_names, folder) if reward is not None and reward > 0 else None
        return Trajectory(
            task_name=request.task.name,
            trial_name=request.name,
            turns=tuple(said.turns),
            reward=reward,
            outcome=outcome,
            detail=detail,
            attempt=request.attempt,
            times=times,
            stats=said.stats,
            trial_dir=str(folder),
            depends=depends,
            side_segments=said.side_segments,
        )

    @contextlib.asynccontextmanager
    async def _policy(self, request: TrialRequest) -> AsyncIterator[Policy]:
        """What the trial's agent asks. Raises UserError at the end, for an agent whose first prompt is too long."""
        config = of_trial(self.parts.config, request.name)
        if self.agents is None or agent_of(config) is None:
            with conversing(TinkerLLM, request, self.parts) as llm:
                yield llm
        else:
            with conversing(Conversation, request, self.parts) as conversation:
                async with self.agents.session(conversation, config) as session:
                    yield session

    async def close(self) -> None:
        """Wait for the removal of containers. Safe to repeat."""
        self.daemon.close()
        await cleaning.drain()


async def _run(request: TrialRequest, host: LocalHost, policy: Policy) -> tuple[Verdict, dict[str, float]]:
    """(the verdict, seconds by stage). Raises OSError when the trial's files cannot be written."""
    started = time.monotonic()
    try:
        key = policy.key if isinstance(policy, ContainerSession) else ""
        trial = await host.new_trial(trial_config(request, host, key))
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        refuse(error, request.trials_dir / request.name)
        detail = f"task {request.task.name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return (Outcome.INFRASTRUCTURE_ERROR, detail, None), {"total": _since(started)}
    limit = host.parts.config.trial_timeout_sec
    observed = ObservedTrial(request.name, host.parts.observer)
    phases = Phases(trial, policy, host.parts.gates, host.daemon, limit, observed)
    try:
        with noting() as noted:
            result = await run_to_end(trial.run(), phases.clock)
    except TimeoutError:
        detail = f"not over after trial_timeout_sec={limit:g}"
        return (Outcome.INFRASTRUCTURE_ERROR, detail, None), {"total": _since(started) - phases.waited}
    finally:
        phases.leave()
    for fault in recorded(result):
        raise_noted(fault, noted, request.trials_dir / request.name)
    times = {"total": _since(started) - phases.waited, "queued": phases.waited}
    verdict = policy.classify(result) if isinstance(policy, ContainerSession) else classify(result, policy)
    if verdict[2] is not None and phases.verdict.unasked:
        verdict = Outcome.UNASKED, unasked(phases.verdict.unasked), None
    if verdict[2] is not None and verdict[2] <= 0:  # earned by the policy, or because the tests could not be installed
        verdict = await _install_verdict(request, phases.verdict.installs, verdict)
    if verdict[2] is None and (reason := eviction_reason(request.name)):  # its own fault, but not gradable
        verdict = Outcome.POLICY_ERROR, reason, None
    return verdict, stage_times(result, answering(policy).turns) | times


async def _install_verdict(request: TrialRequest, installs: bool | None, graded: Verdict) -> Verdict:
    """`graded`, unless the verifier could not install what it runs.

    `installs`: whether it can in a container that no agent touched, so that the policy is at fault.
    """
    cause = await asyncio.to_thread(failed_install, folder_of(request.task), request.trials_dir / request.name)
    if not cause:
        return graded
    if installs:
        return graded[0], f"{cause}; without the agent's work it could, so the grade stands", graded[2]
    return Outcome.VERIFIER_ERROR, cause, None


def trial_config(request: TrialRequest, host: LocalHost, key: str = "") -> "TrialConfig":
    """Return Harbor's description of the trial, stored as JSON: the agent finds what is live by the trial's name.

    `key`: of an agent in the container; Harbor masks it in its files.
    """
    from harbor.models.task.config import TaskConfig as TaskFile
    from harbor.models.trial.config import TaskConfig, TrialConfig, VerifierConfig

    from harbortrainer.venues.harbor.environment import environment_config, with_agent

    config, folder = of_trial(host.parts.config, request.name), folder_of(request.task)
    task = TaskFile.model_validate_toml((folder / "task.toml").read_text())
    environment = environment_config(config.environment_type, config.environment_kwargs, folder, host.parts.run_id)
    return TrialConfig(
        task=TaskConfig(path=folder, source=folder.parent.name),
        trial_name=request.name,
        trials_dir=request.trials_dir,
        agent=_agent_config(request.name, config, key),
        verifier=VerifierConfig(env={MODE: request.mode}, import_path=VERIFIER),
        verifier_timeout_multiplier=most_limits(task),
        environment=with_agent(environment, folder, config),
        agent_timeout_multiplier=LATER,
    )


def _agent_config(trial: str, config: Config, key: str) -> "AgentConfig":
    from harbor.models.trial.config import AgentConfig

    if (agent := agent_of(config)) is not None:
        kwargs, env = {**config.agent_kwargs, "trial": trial}, agent.environment(key)
        return AgentConfig(import_path=agent.import_path, model_name=agent.model, kwargs=kwargs, env=env)
    return AgentConfig(
        import_path="harbortrainer.venues.harbor.terminus:TrainableTerminus2",
        model_name=config.model_name,
        kwargs={
            "max_turns": config.max_turns or None,
            "enable_summarize": config.enable_summarize,
            "proactive_summarization_threshold": config.proactive_summarization_threshold,
            "record_terminal_session": False,
            "suppress_max_turns_warning": True,
            "llm_kwargs": {"name": trial},
        },
    )


async def run_to_end[T](work: Coroutine[Any, Any, T], clock: AbstractAsyncContextManager[object]) -> T:
    """Return the result of `work`; late by the clock or cancelled, `work` is cancelled once and its clean-up awaited.

    A second cancellation would make Harbor return while its container is up. Raises TimeoutError, CancelledError.
    """
    task = asyncio.create_task(work)
    try:
        async with clock:
            return await asyncio.shield(task)
    finally:
        if not task.done():
            task.cancel()
            await _settle(task)


async def _settle(task: "asyncio.Task[Any]") -> None:
    cancelled, now = False, asyncio.get_running_loop().time
    give_up = now() + CLEANUP_LIMIT_SEC
    while not task.done() and now() < give_up:
        try:
            await asyncio.wait({task}, timeout=give_up - now())
        except asyncio.CancelledError:
            cancelled = True
    if task.done() and not task.cancelled():
        task.exception()  # marks it as seen: it did not end the trial
    if cancelled:
        raise asyncio.CancelledError


def stage_times(result: "TrialResult", turns: Sequence[Turn]) -> dict[str, float]:
    """Return seconds of each stage that ran; `sampling` is the part of `agent` that waited for the policy."""
    steps = result.step_results or [result]  # a multi-step task has an agent and a verifier phase for every step
    stages = {
        "environment": [result.environment_setup],
        "agent_setup": [result.agent_setup],
        "agent": [step.agent_execution for step in steps],
        "verifier": [step.verifier for step in steps],
    }
    times = {
        name: sum(_seconds(timing.started_at, timing.finished_at) for timing in ran)
        for name, timings in stages.items()
        if (ran := [timing for timing in timings if timing])
    }
    times["sampling"] = sum(turn.seconds for turn in turns)
    if result.verifier is not None and result.verifier.finished_at and result.finished_at:
        times["teardown"] = _seconds(result.verifier.finished_at, result.finished_at)
    return times


def _since(started: float) -> float:
    return time.monotonic() - started


def _seconds(first: datetime | None, last: datetime | None) -> float:
    return (last - first).total_seconds() if first and last else 0.0
