"""Trials that qualify a task: Harbor trials of an oracle or a script, in the environment of a training trial."""

import json
import shlex
import time
from asyncio import to_thread
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, override

from harbor.agents.base import BaseAgent
from harbor.agents.oracle import OracleAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.task.config import TaskConfig as HarborTaskConfig
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig, VerifierConfig
from harbor.models.trial.paths import EnvironmentPaths, TrialPaths
from harbor.models.trial.result import TrialResult
from harbor.models.verifier.result import VerifierResult
from harbor.trial.trial import Trial
from harbor.utils.env import resolve_env_vars

from harbortrainer.config import Config
from harbortrainer.docker.daemon import Daemon
from harbortrainer.docker.footprint import FOOTPRINT, adopt
from harbortrainer.harbor import boundary, forget_loggers, noting, raise_noted
from harbortrainer.qualify.evidence import LATE, Evidence, read_evidence, why_failed
from harbortrainer.rollout.environment import ENGINE_ENVIRONMENT, environment_config
from harbortrainer.rollout.gates import Gates
from harbortrainer.rollout.grading import VERIFICATIONS, VERIFIER, GradingVerifier, unasked
from harbortrainer.rollout.outcome import failed_install, read_reward, recorded, ungraded
from harbortrainer.rollout.phases import Phases
from harbortrainer.rollout.trial import run_to_end

ORACLE = "oracle"  # the kind of a trial that runs the task's solution
OUTPUT = "output"  # key of a script's output in the context's metadata
_MOST_OUTPUT = 20_000  # characters
REPEATS_FILE = "repeats.json"  # in the trial's directory: each repeat's reward as the script wrote it, "" = none
REPEAT_SEC = 30.0  # for the repeats of one trial's verifier
_SLACK_SEC = 60.0
_FOLDER = EnvironmentPaths.verifier_dir
_AGAIN = """cd {folder} && rm -f reward.txt reward.json; cd - > /dev/null
({script}) > /dev/null 2>&1 < /dev/null
sleep {pause}
printf 'reward '; if [ -f {folder}/reward.json ]; then tr -d '\\n' < {folder}/reward.json
elif [ -f {folder}/reward.txt ]; then tr -d '\\n' < {folder}/reward.txt; fi; echo"""


async def cut_network(environment: BaseEnvironment) -> None:
    """Cut the network for the rest of this phase, where the environment can do that."""
    if environment.capabilities.dynamic_network_policy:
        await environment.set_network_policy(NetworkPolicy(network_mode=NetworkMode.NO_NETWORK))


class OfflineOracle(OracleAgent):
    """Harbor's oracle in an environment whose network is cut."""

    def __init__(self, logs_dir: Path, task_dir: str, **kwargs: Any) -> None:
        super().__init__(logs_dir, Path(task_dir), TrialPaths(Path(logs_dir).parent), **kwargs)

    @override
    @boundary
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        await cut_network(environment)
        await super().run(instruction, environment, context)


class ScriptAgent(BaseAgent):
    """Runs a shell script as the agent's user, within `seconds`, and notes its output in the context's metadata."""

    def __init__(self, *args: Any, script: str = "true", seconds: int = 60, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._script = script
        self._seconds = seconds

    @staticmethod
    @override
    def name() -> str:
        return "harbortrainer-script"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Install nothing."""

    @override
    @boundary
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        try:
            result = await environment.exec(self._script, timeout_sec=self._seconds)
        except RuntimeError:  # timed out: the verifier grades what it did until then
            return
        context.metadata = {OUTPUT: (result.stdout or "")[-_MOST_OUTPUT:]}


class RepeatedVerifier(GradingVerifier):
    """Runs the verifier again up to `repeats` times, within `seconds`; the task's own limit bounds the first run.

    `pause`: seconds before each reward is read, so that a process that rewrites it gets to run on a busy machine.
    """

    def __init__(
        self,
        *args: Any,
        repeats: int = 0,
        seconds: float = 0.0,
        pause: float = 0.0,
        offline: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._repeats = repeats
        self._seconds = seconds
        self._pause = pause
        self._offline = offline

    @override
    @boundary
    async def verify(self) -> VerifierResult:
        if self._offline:
            await cut_network(self.environment)
        began = time.monotonic()
        result = await super().verify()
        script = self.task.paths.discovered_test_path_for(self.environment.os)
        if self._repeats and script is not None and not self.task.config.steps:
            each = time.monotonic() - began + self._pause
            rewards = await self._again(script, min(self._repeats, int(self._seconds / max(each, 0.001))))
            (self.trial_paths.trial_dir / REPEATS_FILE).write_text(json.dumps(rewards))
        return result

    async def _again(self, script: Path, repeats: int) -> list[str]:
        """Rewards of the repeats, all run by one command; a time-out gives one repeat without a reward."""
        inside = EnvironmentPaths.tests_dir / script.relative_to(self.task.paths.tests_dir).as_posix()
        once = _AGAIN.format(folder=_FOLDER, script=shlex.quote(str(inside)), pause=self._pause)
        environment = {**self.task.config.verifier.env, **(self.verifier_env or {}), **self.override_env}
        command = f"for i in $(seq {repeats}); do\n{once}\ndone"
        try:
            output = await self.environment.exec(
                command, env=resolve_env_vars(environment) or None, timeout_sec=int(3 * self._seconds) + 5
            )
        except RuntimeError:  # timed out
            return [""]
        lines = [line for line in (output.stdout or "").splitlines() if line.startswith("reward")]
        return [line.removeprefix("reward").strip() for line in lines]


@dataclass(frozen=True, slots=True)
class QualificationTrial:
    """Result of one trial. `reward` None: ungraded, `fault` says why. `repeats`: more rewards of the same state.

    `left`: what solution and tests printed, where the oracle did not earn 1; `why` in a user's words.
    """

    reward: float | None
    fault: str = ""
    seconds: float = 0.0
    repeats: tuple[str, ...] = ()
    output: str = ""
    left: Evidence = field(default_factory=Evidence)
    why: str = ""


@dataclass(slots=True)
class QualificationTrials:
    """Runs trials of oracles and scripts with shared gates."""

    config: Config
    run_id: str
    folder: Path
    gates: Gates
    daemon: Daemon
    _numbers: Iterator[int] = field(default_factory=count)

    async def oracle(self, task: Path, *, repeats: int, offline: bool = False) -> QualificationTrial:
        if offline:
            kwargs = {"task_dir": str(task)}
            agent = AgentConfig(import_path="harbortrainer.qualify.trials:OfflineOracle", kwargs=kwargs)
        else:
            agent = AgentConfig(name="oracle")
        return await self._run(task, agent, ORACLE, repeats=repeats, offline=offline)

    async def script(
        self, task: Path, kind: str, script: str, *, repeats: int, pause: float = 0.0
    ) -> QualificationTrial:
        agent = AgentConfig(import_path="harbortrainer.qualify.trials:ScriptAgent", kwargs={"script": script})
        return await self._run(task, agent, kind, repeats=repeats, pause=pause)

    async def _run(self, task: Path, agent: AgentConfig, kind: str, **verifier: Any) -> QualificationTrial:
        """`verifier`: arguments of RepeatedVerifier."""
        config = self._trial_config(task, agent, kind, verifier)
        async with self.gates.containers:
            await self.daemon.ready()
            began = time.monotonic()
            with forget_loggers(config.trial_name):
                try:
                    trial = await Trial.create(config)
                except (OSError, ValueError, RuntimeError, ImportError) as error:
                    return QualificationTrial(None, _plain(type(error).__name__, str(error)))
                phases = Phases(trial, None, self.gates, self.daemon, self.config.trial_timeout_sec)
                try:
                    with noting() as noted:
                        result = await run_to_end(trial.run(), phases.clock)
                except TimeoutError:
                    return QualificationTrial(
                        None, f"not over after trial_timeout_sec={self.config.trial_timeout_sec:g}"
                    )
                finally:
                    phases.leave()
        folder = self.folder / config.trial_name
        for info in recorded(result):
            raise_noted(info, noted, folder)
        trial = _result(result, folder, time.monotonic() - began - phases.waited)
        if trial.reward is not None and phases.unasked:
            trial = replace(trial, reward=None, fault=unasked(phases.unasked))
        if trial.reward is not None and trial.reward >= 1:
            await to_thread(adopt, folder / FOOTPRINT)
        if trial.reward is not None and trial.reward <= 0 and (cause := await to_thread(failed_install, task, folder)):
            trial = replace(trial, reward=None, fault=cause)
        if trial.reward is None or (kind == ORACLE and trial.reward < 1):
            late = any(info.exception_type == LATE for info in recorded(result))
            left = await to_thread(read_evidence, folder)
            return replace(trial, left=left, why=why_failed(task, left, trial.fault, late=late))
        return trial

    def _environment(self, task: Path) -> EnvironmentConfig:
        config = self.config
        return environment_config(config.environment_type, config.environment_kwargs, task, self.run_id)

    def _trial_config(self, task: Path, agent: AgentConfig, kind: str, kwargs: dict[str, Any]) -> TrialConfig:
        verifier = VerifierConfig(import_path=VERIFIER)
        if kwargs["repeats"] or kwargs.get("offline"):
            own = HarborTaskConfig.model_validate_toml((task / "task.toml").read_text()).verifier.timeout_sec
            limit = own + (4 * REPEAT_SEC + _SLACK_SEC) / VERIFICATIONS if kwargs["repeats"] else None
            path = "harbortrainer.qualify.trials:RepeatedVerifier"
            verifier = VerifierConfig(
                import_path=path, kwargs=kwargs | {"seconds": REPEAT_SEC}, override_timeout_sec=limit
            )
        environment = self._environment(task)
        if kind == ORACLE and environment.import_path == ENGINE_ENVIRONMENT:
            environment.kwargs["records_footprint"] = True
        return TrialConfig(
            task=TaskConfig(path=task, source=task.parent.name),
            trial_name=f"check-{next(self._numbers):04d}-{kind}-{task.name}"[:50].rstrip("-._"),
            trials_dir=self.folder,
            agent=agent,
            verifier=verifier,
            verifier_timeout_multiplier=VERIFICATIONS,
            environment=environment,
        )


def _result(result: TrialResult, folder: Path, seconds: float) -> QualificationTrial:
    fault = ungraded(result)
    if fault is not None:
        message = fault.exception_message.replace(f"{folder}/", "")
        return QualificationTrial(None, _plain(fault.exception_type, message), seconds)
    reward, problem = read_reward(result.verifier_result.rewards if result.verifier_result else None)
    repeats = folder / REPEATS_FILE
    again = tuple(json.loads(repeats.read_text())) if repeats.exists() else ()
    metadata = (result.agent_result.metadata if result.agent_result else None) or {}
    return QualificationTrial(reward, problem, seconds, again, str(metadata.get(OUTPUT, "")))


def _plain(kind: str, message: str) -> str:
    return f"{kind}: {' '.join(message.split())[:300]}"
