"""The pretraining's simulated terminal shows what Terminus-2 reports from tmux in a real container."""

import asyncio
from pathlib import Path
from typing import Any

from harbor.llms.base import BaseLLM, LLMResponse
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

from harbortrainer.venues.harbor.terminus import Terminus2, TrainableTerminus2
from scripts.easy import make_tasks as easy
from scripts.easy.kinds import EASY_KINDS
from scripts.quickstart import answers, prompts
from scripts.quickstart.cases import Case
from scripts.quickstart.kinds import KINDS
from scripts.quickstart.make_tasks import make_cases
from scripts.quickstart.terminal import SimulatedTerminal

ENVIRONMENT = "harbortrainer.docker.box.environment:DockerEngineEnvironment"
DONE = answers.answer(answers.DONE[0], answers.FINISH, None, complete=True)


class ScriptedLLM(BaseLLM):
    """Says what it was told to say, and keeps what it was asked."""

    def __init__(self, script: list[str]) -> None:
        super().__init__()
        self.asked: list[str] = []
        self._script = iter(script)

    async def call(self, prompt: str, **_: Any) -> LLMResponse:
        self.asked.append(prompt)
        return LLMResponse(content=next(self._script))

    def get_model_context_limit(self) -> int:
        return 100_000

    def get_model_output_limit(self) -> int | None:
        return None


LLMS: dict[str, ScriptedLLM] = {}


class ScriptedTerminus(Terminus2):
    # as in training: Harbor's own reads the terminal before its shell has shown a prompt
    setup = TrainableTerminus2.setup  # pyright: ignore[reportAssignmentType]
    _execute_commands = TrainableTerminus2._execute_commands  # pyright: ignore[reportAssignmentType]

    def _init_llm(self, **named: Any) -> ScriptedLLM:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._policy = LLMS[named["llm_kwargs"]["name"]]  # which is told what a screen showed
        return self._policy


def typed(command: str) -> str:
    """An answer that leaves the shell plenty of time: other tests may be running. A turn ends at the prompt."""
    answer = answers.answer(answers.START[0], answers.CAREFUL, command, complete=False)
    return answer.replace('"duration": 0.1', '"duration": 600.0')


async def real_prompts(folder: Path, path: Path, script: list[str]) -> list[str]:
    task = path.name
    LLMS[task] = ScriptedLLM(script)
    agent = AgentConfig(
        import_path=f"{__name__}:ScriptedTerminus",
        model_name="scripted",
        kwargs={
            "llm_kwargs": {"name": task},
            "record_terminal_session": False,
            "enable_summarize": False,
            "max_turns": len(script),
        },
    )
    config = TrialConfig(
        task=TaskConfig(path=path),
        trial_name=f"prompts-{task}",
        trials_dir=folder,
        agent=agent,
        environment=EnvironmentConfig(import_path=ENVIRONMENT),
    )
    result = await (await Trial.create(config)).run()
    assert result.exception_info is None
    return LLMS[task].asked


def simulated_prompts(case: Case, command: str) -> list[str]:
    terminal = SimulatedTerminal(case)
    asked = [prompts.first_prompt(case.instruction + "\n", terminal.observe())]
    asked.append(prompts.parse_failure(prompts.NO_JSON))
    terminal.type(command + "\n")
    asked.append(terminal.observe())
    asked.append(prompts.confirmation(terminal.observe()))
    return asked


async def same_prompts(folder: Path, tasks: Path, cases: dict[str, Case]) -> bool:
    """Whether real trials of these tasks ask what the simulated terminal shows, each with its longest output."""
    commands = {name: max(case.wrong, key=lambda wrong: len(wrong.shown)).typed for name, case in cases.items()}
    few = asyncio.Semaphore(4)  # the shell's first prompt is waited for as long as the agent does, for seconds

    async def real(name: str) -> list[str]:
        unclosed = answers.broken(answers.START[0], answers.CAREFUL, commands[name])
        async with few:
            return await real_prompts(folder, tasks / name, [unclosed, typed(commands[name]), DONE, DONE])

    found = dict(zip(cases, await asyncio.gather(*map(real, cases)), strict=True))
    assert found == {name: simulated_prompts(case, commands[name]) for name, case in cases.items()}
    return bool(found)


async def test_real_prompts_are_those_of_the_pretraining(tmp_path: Path) -> None:
    cases = {name: case for name, case in make_cases().items() if name.endswith("-1")}
    assert await same_prompts(tmp_path, Path("datasets/quickstart"), cases)


async def test_real_prompts_are_those_of_the_demonstrations(tmp_path: Path) -> None:
    """Of the four kinds that the quickstart does not have; held-out tasks, whose environment all kinds share."""
    names = [f"{kind.name}-9" for kind in EASY_KINDS if kind not in KINDS]
    cases = {name: case for name, case in easy.write_tasks(tmp_path / "tasks").items() if name in names}
    assert len(cases) == 4 and await same_prompts(tmp_path / "trials", tmp_path / "tasks", cases)
