"""Trials that qualify a task: through Harbor, in the environment and with the phases of a training trial."""

import json
import time
from asyncio import to_thread
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from harbor.models.task.config import TaskConfig as HarborTaskConfig
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig, VerifierConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from src.config import Config
from src.rollout.docker.daemon import Daemon
from src.rollout.environment import KEEP, environment_config
from src.rollout.harbor import forget_loggers, noting, raise_noted
from src.rollout.outcome import read_reward, recorded, ungraded
from src.rollout.phases import Gates, Phases
from src.rollout.trial import run_to_end
from src.rollout.verifier_install import failed_install
from src.tasks.agents import SAID
from src.tasks.repeated_verifier import REPEATS_FILE

REPEAT_SEC = 30.0  # for the repeats of one trial's verifier
_SLACK_SEC = 60.0


@dataclass(frozen=True, slots=True)
class Tried:
    """How one trial went. `reward` None: nobody graded it, `fault` says why. `repeats`: rewards of the same state."""

    reward: float | None
    fault: str = ""
    seconds: float = 0.0
    verifier_sec: float = 0.0
    repeats: tuple[str, ...] = ()
    said: str = ""


class _NoPolicy:
    deadline: float | None = None


@dataclass(slots=True)
class Trials:
    """What the trials of a qualification share."""

    config: Config
    run_id: str
    folder: Path
    gates: Gates
    daemon: Daemon
    _numbers: Iterator[int] = field(default_factory=count)

    def keeps_processes(self, task: Path) -> bool:
        """Whether what the agent has started lives on while its work is verified."""
        config = self.config
        environment = environment_config(config.environment_type, config.environment_kwargs, task, self.run_id)
        return config.environment_type != "docker" or bool(environment.kwargs.get(KEEP))

    async def oracle(self, task: Path, *, repeats: int = 0, offline: bool = False) -> Tried:
        if offline:
            kwargs = {"task_dir": str(task)}
            agent = AgentConfig(import_path="src.tasks.agents:OfflineOracle", kwargs=kwargs)
        else:
            agent = AgentConfig(name="oracle")
        return await self._run(task, agent, "oracle", repeats, offline)

    async def script(self, task: Path, kind: str, script: str, *, repeats: int = 0, pause: float = 0.0) -> Tried:
        agent = AgentConfig(import_path="src.tasks.agents:ScriptAgent", kwargs={"script": script})
        return await self._run(task, agent, kind, repeats, False, pause)

    async def _run(
        self, task: Path, agent: AgentConfig, kind: str, repeats: int, offline: bool, pause: float = 0.0
    ) -> Tried:
        config = self._trial_config(task, agent, self._name(task, kind), repeats, offline, pause)
        async with self.gates.containers:
            await self.daemon.ready()
            began = time.monotonic()
            with forget_loggers(config.trial_name):
                try:
                    trial = await Trial.create(config)
                except (OSError, ValueError, RuntimeError, ImportError) as error:
                    return Tried(None, _plain(type(error).__name__, str(error)))
                phases = Phases(trial, _NoPolicy(), self.gates, self.daemon, self.config.trial_timeout_sec)
                try:
                    with noting() as noted:
                        result = await run_to_end(trial.run(), phases.clock)
                except TimeoutError:
                    return Tried(None, f"not over after trial_timeout_sec={self.config.trial_timeout_sec:g}")
                finally:
                    phases.leave()
        folder = self.folder / config.trial_name
        for info in recorded(result):
            raise_noted(info, noted, folder)
        tried = _tried(result, folder, time.monotonic() - began - phases.waited)
        if tried.reward is not None and tried.reward <= 0 and (cause := await to_thread(failed_install, task, folder)):
            return replace(tried, reward=None, fault=cause)
        return tried

    def _name(self, task: Path, kind: str) -> str:
        return f"check-{next(self._numbers):04d}-{kind}-{task.name}"[:50].rstrip("-._")

    def _trial_config(
        self, task: Path, agent: AgentConfig, name: str, repeats: int, offline: bool, pause: float
    ) -> TrialConfig:
        verifier = VerifierConfig()
        if repeats or offline:
            own = HarborTaskConfig.model_validate_toml((task / "task.toml").read_text()).verifier.timeout_sec
            limit = own + 4 * REPEAT_SEC + _SLACK_SEC if repeats else None
            kwargs: dict[str, Any] = {"repeats": repeats, "seconds": REPEAT_SEC, "offline": offline, "pause": pause}
            path = "src.tasks.repeated_verifier:RepeatedVerifier"
            verifier = VerifierConfig(import_path=path, kwargs=kwargs, override_timeout_sec=limit)
        environment = environment_config(
            self.config.environment_type, self.config.environment_kwargs, task, self.run_id
        )
        return TrialConfig(
            task=TaskConfig(path=task, source=task.parent.name),
            trial_name=name,
            trials_dir=self.folder,
            agent=agent,
            verifier=verifier,
            environment=environment,
        )


def _tried(result: TrialResult, folder: Path, seconds: float) -> Tried:
    verifier_sec = 0.0
    if (ran := result.verifier) and ran.started_at and ran.finished_at:
        verifier_sec = (ran.finished_at - ran.started_at).total_seconds()
    fault = ungraded(result)
    if fault is not None:
        message = fault.exception_message.replace(f"{folder}/", "")
        return Tried(None, _plain(fault.exception_type, message), seconds, verifier_sec)
    reward, problem = read_reward(result.verifier_result.rewards if result.verifier_result else None)
    repeats = folder / REPEATS_FILE
    again = tuple(json.loads(repeats.read_text())) if repeats.exists() else ()
    metadata = (result.agent_result.metadata if result.agent_result else None) or {}
    return Tried(reward, problem, seconds, verifier_sec, again, str(metadata.get(SAID, "")))


def _plain(kind: str, message: str) -> str:
    return f"{kind}: {' '.join(message.split())[:300]}"
