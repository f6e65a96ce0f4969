"""Trials that qualify a task: Harbor trials of an oracle or a script, in the environment of a training trial."""

import json
import shutil
import time
from asyncio import to_thread
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, override

from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.agents.oracle import OracleAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.task.verifier_mode import VerifierEnvironmentMode, resolve_task_verifier_mode
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig, VerifierConfig
from harbor.models.trial.paths import TrialPaths
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from harbortrainer.config import Config
from harbortrainer.docker.daemon import Daemon
from harbortrainer.docker.integrity.allowed import allow, allowed
from harbortrainer.docker.integrity.footprint import FOOTPRINT, adopt
from harbortrainer.harbor import boundary, forget_loggers, noting, raise_noted, task_config
from harbortrainer.qualify.evidence import LATE, Evidence, read_evidence, why_failed
from harbortrainer.qualify.repeats import REPEATS_FILE
from harbortrainer.rollout.gates import Gates
from harbortrainer.venues.harbor.environment import ENGINE_ENVIRONMENT, environment_config
from harbortrainer.venues.harbor.grading import CAUSES, VERIFICATIONS, VERIFIER, unasked
from harbortrainer.venues.harbor.install import failed_install
from harbortrainer.venues.harbor.outcome import in_short, read_reward, recorded, ungraded
from harbortrainer.venues.harbor.phases import Phases
from harbortrainer.venues.harbor.trial import run_to_end

ORACLE = "oracle"  # the kind of a trial that runs the task's solution
STRANGER = "stranger"  # the same, where the task's folder has no solution
NO_OP = "no-op"  # of one that does nothing
OUTPUT, CUT = "output", "cut"  # keys of the context's metadata: a script's output; whether it was not over in time
SCRIPT_SEC = 60  # for a script, where the task has no limit for agents
_MOST_OUTPUT = 20_000  # characters
REPEAT_SEC = 15.0  # for the repeats of one trial's verifier
_SLACK_SEC = 60.0
_AS_AGENTS = AgentCapabilities(skills=True, mcp_servers=True, mcp_http_headers=True)  # of tasks that have them


class TaskOracle(OracleAgent):
    """Harbor's oracle of the task in `task_dir`, whatever the trial's task is."""

    capabilities = _AS_AGENTS

    def __init__(self, logs_dir: Path, task_dir: str, **kwargs: Any) -> None:
        super().__init__(logs_dir, Path(task_dir), TrialPaths(Path(logs_dir).parent), **kwargs)


class ScriptAgent(BaseAgent):
    """Runs a shell script as the agent's user, and notes its output in the context's metadata.

    After `seconds` it is cut, which the metadata say.
    """

    capabilities = _AS_AGENTS

    def __init__(self, *args: Any, script: str = "true", seconds: int = SCRIPT_SEC, **kwargs: Any) -> None:
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
            context.metadata = {CUT: True}
            return
        context.metadata = {OUTPUT: (result.stdout or "")[-_MOST_OUTPUT:]}


@dataclass(frozen=True, slots=True)
class QualificationTrial:
    """Result of one trial.

    `reward` None: ungraded, `fault` says why, and `why` in a user's words with what was `left`; for an oracle below 1,
    too. `repeats`: more rewards of the same state. `work`: files with content that the oracle left, and whether each is
    a program. `cut`: script or solution was not over in time. `unasked`: what a stranger's reward depends on.
    """

    reward: float | None
    fault: str = ""
    seconds: float = 0.0
    repeats: tuple[str, ...] = ()
    output: str = ""
    work: Mapping[str, bool] = field(default_factory=dict[str, bool])
    cut: bool = False
    unasked: tuple[str, ...] = ()
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

    async def oracle(self, task: Path, *, repeats: int) -> QualificationTrial:
        return await self._run(task, AgentConfig(name="oracle"), ORACLE, repeats=repeats)

    async def stranger(self, task: Path) -> QualificationTrial:
        """Return a trial of the oracle where only the instruction, and what users allow, tell what the task asks for.

        A reward that depends on more is the trial's all the same, and `unasked` names that.
        """
        copy = await to_thread(_without_solution, task, self.folder / f"{STRANGER}-{next(self._numbers)}")
        agent = AgentConfig(import_path="harbortrainer.qualify.trials:TaskOracle", kwargs={"task_dir": str(task)})
        return await self._run(copy, agent, STRANGER, repeats=0)

    async def script(self, task: Path, kind: str, script: str, *, repeats: int) -> QualificationTrial:
        options = {"script": script, "seconds": int(task_config(task).agent.timeout_sec or SCRIPT_SEC)}
        agent = AgentConfig(import_path="harbortrainer.qualify.trials:ScriptAgent", kwargs=options)
        return await self._run(task, agent, kind, repeats=repeats)

    async def _run(self, task: Path, agent: AgentConfig, kind: str, *, repeats: int) -> QualificationTrial:
        """`repeats`: of the verifier."""
        config = self._trial_config(task, agent, kind, repeats)
        async with self.gates.containers:
            await self.daemon.ready()
            began = time.monotonic()
            with forget_loggers(config.trial_name):
                try:
                    trial = await Trial.create(config)
                except (OSError, ValueError, RuntimeError, ImportError) as error:
                    return QualificationTrial(None, in_short(type(error).__name__, str(error)))
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
        if trial.reward is not None and (causes := phases.verdict.unasked):
            trial = replace(trial, reward=None, fault=unasked(causes))
        if kind == STRANGER:
            trial = await to_thread(_all_the_same, trial, folder)
        if trial.reward is not None and trial.reward >= 1:
            await to_thread(adopt, folder / FOOTPRINT)
        if trial.reward is not None and trial.reward <= 0 and (cause := await to_thread(failed_install, task, folder)):
            trial = replace(trial, reward=None, fault=cause)
        if trial.reward is None or (kind in (ORACLE, STRANGER, NO_OP) and trial.reward < 1):
            left = await to_thread(read_evidence, folder)
            return replace(trial, left=left, why=why_failed(task, left, trial.fault, late=trial.cut))
        return trial

    def is_watched(self, task: Path) -> bool:
        """Return whether verification runs beside the agent's work, and can be watched or need not be."""
        separate = resolve_task_verifier_mode(task_config(task)) is VerifierEnvironmentMode.SEPARATE
        return separate or self._environment(task).import_path == ENGINE_ENVIRONMENT

    def _environment(self, task: Path) -> EnvironmentConfig:
        config = self.config
        return environment_config(config.environment_type, config.environment_kwargs, task, self.run_id)

    def _trial_config(self, task: Path, agent: AgentConfig, kind: str, repeats: int) -> TrialConfig:
        verifier = VerifierConfig(import_path=VERIFIER)
        if repeats:
            verifier = VerifierConfig(
                import_path="harbortrainer.qualify.repeats:RepeatedVerifier",
                kwargs={"repeats": repeats, "seconds": REPEAT_SEC},
                override_timeout_sec=task_config(task).verifier.timeout_sec
                + (4 * REPEAT_SEC + _SLACK_SEC) / VERIFICATIONS,
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
        return QualificationTrial(None, in_short(fault.exception_type, message), seconds)
    reward, problem = read_reward(result.verifier_result.rewards if result.verifier_result else None)
    repeats = folder / REPEATS_FILE
    again = json.loads(repeats.read_text()) if repeats.exists() else {"rewards": (), "work": {}}
    metadata = (result.agent_result.metadata if result.agent_result else None) or {}
    cut = CUT in metadata or any(info.exception_type == LATE for info in recorded(result))
    output = str(metadata.get(OUTPUT, ""))
    return QualificationTrial(
        reward, problem, seconds, tuple(again["rewards"]), output=output, work=again["work"], cut=cut
    )


def _all_the_same(trial: QualificationTrial, folder: Path) -> QualificationTrial:
    """With the reward of the first verification, where further ones took it for that of what nothing asks for."""
    try:
        found = json.loads((folder / CAUSES).read_text())
    except FileNotFoundError:
        return trial
    if found["without"] is not None and found["without"] >= found["reward"]:
        return trial
    return replace(trial, reward=found["reward"], fault="", unasked=tuple(found["causes"]))


def _without_solution(task: Path, folder: Path) -> Path:
    """A copy of the task in `folder`, with what users allow. Blocks."""
    left_out = {task, *(task / "steps").glob("*")}

    def solution(parent: str, _: list[str]) -> list[str]:
        return ["solution"] if Path(parent) in left_out else []

    copy = Path(shutil.copytree(task, folder / task.name, symlinks=True, ignore=solution))
    allow(copy, allowed(task))
    return copy
