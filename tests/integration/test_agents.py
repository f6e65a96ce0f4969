"""Harbor's agents for containers, unmodified, in real trials without a network, with a scripted policy."""

import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.config import Config
from harbortrainer.docker import cleaning
from harbortrainer.docker.daemon import Daemon
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.agent_session import AgentService
from harbortrainer.rollout.agents import PORT
from harbortrainer.rollout.gates import Gates
from harbortrainer.rollout.trial import TrialContext, run_trial
from tests.conftest import ROOT
from tests.support.docker_parts import containers
from tests.support.fakes import Request, ScriptedClient
from tests.support.families import QWEN_TOOLS, chat_of
from tests.support.trial_parts import TASK_TOML, make_task, request

RUN = f"test-agents-{os.getpid()}"
AGENTS = Path(os.environ.get("AGENTS_DIR", ROOT / ".state" / "agents"))
SHELL = {"mini-swe-agent": ("bash", "command"), "codex": ("exec_command", "cmd")}
WORK = ["ls -la", "printf 'caf\u00e9 \\\"q\\\"\\n'; echo '<|im_end|>'", "echo Hello > hello.txt", "cat hello.txt"]
TEST = f"""[ "$(cat /app/hello.txt 2>/dev/null)" = Hello ] && r=1 || r=0
(exec 3<>/dev/tcp/127.0.0.1/{PORT}) 2>/dev/null && r=0.5 && echo the endpoint is open
echo $r > /logs/verifier/reward.txt
"""
Said = Callable[[Request], Any] | Sequence[str]

pytestmark = pytest.mark.skipif(not (AGENTS / "bin").is_dir(), reason="scripts/setup.sh --agents makes the programs")


@pytest.fixture(autouse=True)
async def nothing_left(docker_ready: str) -> AsyncIterator[None]:
    yield
    await cleaning.drain()
    assert containers(RUN) == []


def call(agent: str, command: str, *, spaced: bool = False) -> str:
    """A turn in the template's form; `spaced`: in JSON that no serialiser writes."""
    name, field = SHELL[agent]
    arguments = json.dumps({field: command}, ensure_ascii=not spaced)
    text = (
        f'{{"name":  "{name}","arguments":   {arguments} }}'
        if spaced
        else f'{{"name": "{name}", "arguments": {arguments}}}'
    )
    return f"{'Look.  ' if spaced else ''}\n<tool_call>\n{text}\n</tool_call>"


def script(agent: str, commands: Sequence[str] = WORK) -> list[str]:
    """Turns that run these commands, and end the session."""
    said = [call(agent, command, spaced=bool(number % 2)) for number, command in enumerate(commands)]
    last = call(agent, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT") if agent == "mini-swe-agent" else "All done."
    return [*said, last]


async def run(
    folder: Path, agent: str, said: Said, *, test: str = TEST, toml: str = "", **fields: Any
) -> tuple[Trajectory, ScriptedClient]:
    """One trial of a task without a network."""
    template = chat_of(QWEN_TOOLS)
    client, sampler = ScriptedClient(said, template), PolicySampler(attempts=1)
    sampler.publish(client, 7)
    given: dict[str, Any] = {
        "model_name": "fake/policy", "tasks_dir": ".", "agent": agent, "agents_dir": str(AGENTS), "max_turns": 9,
        "context_limit": 200_000, "trial_timeout_sec": 600.0,
    }  # fmt: skip
    config = Config(**given | fields)
    task = make_task(folder, test=test)
    task_toml = folder / task.name / "task.toml"
    task_toml.write_text(TASK_TOML.format(agent_timeout=300.0) + 'network_mode = "no-network"\n' + toml)
    service = AgentService.of(template)
    context = TrialContext(
        config, sampler, template, RUN, Gates.of(config), Daemon(config.outage_limit_sec), agents=service
    )
    async with service.endpoint:
        trajectory = await run_trial(request(task, folder), context)
    return trajectory, client


@pytest.mark.parametrize("agent", SHELL)
async def test_an_agent_solves_a_task_without_a_network_and_every_prompt_is_exact(agent: str, tmp_path: Path) -> None:
    trajectory, client = await run(tmp_path, agent, script(agent))
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    seen: list[int] = []
    for turn, asked in zip(trajectory.turns, client.requests, strict=True):
        seen += turn.new_tokens_T
        assert asked.prompt_T == seen
        seen += turn.completion_tokens_T
        assert (turn.segment, turn.weights_version) == (0, 7)
    assert trajectory.side_segments == ()
    assert trajectory.stats["wire_tokens_per_unique_token"] == 1.0
    assert len(trajectory.turns) == len(WORK) + 1
    folder = Path(trajectory.trial_dir)
    stored = json.loads((folder / "result.json").read_text())
    assert stored["agent_info"]["name"] == agent
    assert (folder / "agent" / "trajectory.json").is_file()


async def test_the_key_is_in_no_file_of_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []
    made = AgentService.session
    monkeypatch.setattr(AgentService, "session", lambda *given: (keys.append((one := made(*given)).key), one)[1])
    trajectory, _ = await run(tmp_path, "mini-swe-agent", script("mini-swe-agent"))
    assert len(keys) == 1 and trajectory.reward == 1.0
    files = [path for path in Path(trajectory.trial_dir).rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if keys[0].encode() in path.read_bytes()] == []
