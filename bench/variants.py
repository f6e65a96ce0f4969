"""The same trials in three ways (Harbor's own, ours, bare Engine API calls), with policies that are scripted."""

import asyncio
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
from docker.utils import kwargs_from_env
from harbor.llms.base import BaseLLM, LLMResponse
from harbor.models.environment_type import EnvironmentType
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from harbortrainer.config import Config
from harbortrainer.docker.keeping import cleaning
from harbortrainer.harbor import without_litellm
from harbortrainer.learning.trajectory import Trajectory
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.quarantine import Retries
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.tasks.folders import digest
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor.room import warm_up
from tests.support.task_folder import write_task

with without_litellm():
    from harbor.agents.terminus_2.terminus_2 import Terminus2

IMAGE = "harbortrainer/base:bookworm"  # made by scripts/setup.sh
RUN_ID = "bench"
TOKENIZER = Path(__file__).resolve().parents[1] / "models" / "quickstart"
STAGES = ("environment", "agent_setup", "verifier", "teardown")  # of a trial's times
_names = itertools.count()


def answer(turn: int, n_commands: int, wait_sec: float) -> str:
    """What the policy says in its turn `turn`, from 0: `n_commands` times a command, then that it is done."""
    commands = [{"keystrokes": "echo hello\n", "duration": wait_sec}] if turn < n_commands else []
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": not commands})


@dataclass(frozen=True)
class Script:
    """What the policy of a trial does: `n_commands` commands, each with `wait_sec`; then it says twice it is done.

    With `turns` below n_commands + 2 it is stopped before. An answer takes it `latency_sec` on average, exponentially
    distributed: trials that end all together start all together.
    """

    n_commands: int
    turns: int
    wait_sec: float = 0.0
    latency_sec: float = 0.0


class ScriptedClient:
    """In place of a `tinker.SamplingClient`: tells the turn from the number of ended turns in the prompt."""

    def __init__(self, template: ChatTemplate, script: Script) -> None:
        self._template = template
        self._script = script
        self._chance = random.Random(0)

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        turn = prompt.to_ints().count(self._template.turn_end) // 2
        if mean := self._script.latency_sec:
            await asyncio.sleep(self._chance.expovariate(1 / mean))
        text = answer(turn, self._script.n_commands, self._script.wait_sec)
        ids = [*self._template.tokenizer.encode(text, add_special_tokens=False), self._template.turn_end]
        sequence = SimpleNamespace(tokens=ids, logprobs=[-0.1] * len(ids), stop_reason="stop")
        return SimpleNamespace(sequences=[sequence] * num_samples)


class InstantLLM(BaseLLM):
    def __init__(self, n_commands: int, wait_sec: float) -> None:
        super().__init__()
        self._script = n_commands, wait_sec
        self._turn = -1

    async def call(self, prompt: str, **kwargs: Any) -> LLMResponse:
        self._turn += 1
        return LLMResponse(content=answer(self._turn, *self._script))

    def get_model_context_limit(self) -> int:
        return 1_000_000

    def get_model_output_limit(self) -> int | None:
        return None


class InstantTerminus(Terminus2):
    """Harbor's agent as it is, but for its model."""

    def _init_llm(self, **named: Any) -> BaseLLM:  # pyright: ignore[reportIncompatibleMethodOverride]
        return InstantLLM(**named["llm_kwargs"])


@dataclass(frozen=True)
class Run:
    """One trial that ended: seconds inside and outside of the agent's time, and a fault in one line.

    `stages`: what the seconds outside are made of.
    """

    agent: float
    outside: float
    fault: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)


class Ours:
    """Trials through `Rollouts`, as a training run has them."""

    name = "ours"
    has_turns = True

    def __init__(self, task: Path, parallel: int, script: Script) -> None:
        config = Config(
            model_name="bench/instant", tasks_dir=str(task.parent), n_parallel_envs=parallel, max_turns=script.turns,
            context_limit=1_000_000,
        )  # fmt: skip
        template = ChatTemplate.load(str(TOKENIZER), enable_thinking=False)
        sampler = PolicySampler()
        sampler.publish(ScriptedClient(template, script), 0)
        self._warm = False
        self._config = config
        self._rollouts = Rollouts(config, sampler, template, RUN_ID, retries=Retries(attempts=1))
        self._task = Task(task.name, task, digest(task))
        self._folder = task.parent / "trials"

    async def run(self, n: int) -> list[Run]:
        """`n` trials, at most `parallel` at a time, and the removal of their containers."""
        if not self._warm:
            await warm_up(self._config)  # as a training run does, once
            self._warm = True
        number = next(_names)
        folder = self._folder / f"{self.name}{number}"  # a batch's own, as in training
        groups = await self._rollouts.run_groups([self._task], n, folder, step=number, temperature=1.0)
        await cleaning.drain()
        return [_ran(t) for group in groups for t in (*group.trajectories_G, *group.lost)]


def _ran(trajectory: Trajectory) -> Run:
    agent = trajectory.times.get("agent", 0.0)
    fault = "" if trajectory.reward == 1.0 else f"{trajectory.outcome} {trajectory.detail} reward {trajectory.reward}"
    outside = trajectory.times["total"] - agent
    stages = {name: trajectory.times.get(name, 0.0) for name in STAGES}
    stages["other"] = outside - sum(stages.values())
    return Run(agent - trajectory.times.get("sampling", 0.0), outside, fault, stages)


class Stock:
    """Harbor's own agent in Harbor's own Docker environment."""

    name = "stock"
    has_turns = True

    def __init__(self, task: Path, parallel: int, script: Script) -> None:
        self._task = task
        self._limit = asyncio.Semaphore(parallel)
        self._options: dict[str, Any] = {
            "max_turns": script.turns,
            "enable_summarize": False,
            "record_terminal_session": False,
            "llm_kwargs": {"n_commands": script.n_commands, "wait_sec": script.wait_sec},
        }

    async def run(self, n: int) -> list[Run]:
        return await asyncio.gather(*(self._one() for _ in range(n)))

    async def _one(self) -> Run:
        agent = AgentConfig(import_path="bench.variants:InstantTerminus", model_name="instant", kwargs=self._options)
        config = TrialConfig(
            task=TaskConfig(path=self._task),
            trial_name=f"stock{next(_names)}",
            trials_dir=self._task.parent / "trials",
            agent=agent,
            environment=EnvironmentConfig(type=EnvironmentType.DOCKER),
        )
        async with self._limit:
            result = await (await Trial.create(config)).run()
        rewards = result.verifier_result.rewards if result.verifier_result else None
        agent_time = _seconds(result.agent_execution)
        fault = "" if rewards == {"reward": 1} else f"{result.exception_info} rewards {rewards}"
        return Run(agent_time, _seconds(result) - agent_time, fault)


def _seconds(timing: TrialResult | Any) -> float:
    if timing is None or timing.started_at is None or timing.finished_at is None:
        return 0.0
    return (timing.finished_at - timing.started_at).total_seconds()


class Raw:
    """Create, start, two execs, remove: nothing of a trial but what Docker does for it."""

    name = "raw"
    has_turns = False

    def __init__(self, task: Path, parallel: int, script: Script) -> None:
        self._threads = ThreadPoolExecutor(parallel)
        self._client = docker.APIClient(version="auto", max_pool_size=parallel, **kwargs_from_env())

    async def run(self, n: int) -> list[Run]:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, self._cycle) for _ in range(n)))
        return []

    def _cycle(self) -> None:
        client = self._client
        container = client.create_container(IMAGE, ["sleep", "infinity"], labels={"harbortrainer.bench": "1"})["Id"]
        try:
            client.start(container)
            for _ in range(2):
                client.exec_start(client.exec_create(container, ["true"])["Id"])
        finally:
            client.remove_container(container, force=True)


Variant = Ours | Stock | Raw
VARIANTS: Sequence[type[Variant]] = (Stock, Ours, Raw)


def light_task(folder: Path) -> Path:
    """A task any trial of which earns 1."""
    limit = "[verifier]\ntimeout_sec = 60.0\n"
    return write_task(folder / "bench-task", toml=limit, test="echo 1 > /logs/verifier/reward.txt\n")
