"""Harbor's agents for containers, unmodified, in real trials without a network, with a scripted policy."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.config import Config
from harbortrainer.docker import cleaning
from harbortrainer.docker.daemon import Daemon
from harbortrainer.docker.images import prepare_images
from harbortrainer.docker.listener import listener_problem
from harbortrainer.doctor.agents import agent_lines
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.agent_session import AgentService, AgentSession
from harbortrainer.rollout.agents import PORT, PROGRAMS
from harbortrainer.rollout.gates import Gates
from harbortrainer.rollout.outcome import SAMPLING
from harbortrainer.rollout.trial import TrialContext, run_trial
from tests.conftest import ROOT
from tests.support.docker_parts import containers
from tests.support.fakes import Request, ScriptedClient
from tests.support.families import QWEN_TOOLS, chat_of
from tests.support.tiers import first
from tests.support.trial_parts import TASK_TOML, make_task
from tests.support.trial_parts import request as request_of

RUN = f"test-agents-{os.getpid()}"
AGENTS = Path(os.environ.get("AGENTS_DIR", ROOT / ".state" / "agents"))
SHELL: dict[str, tuple[str, str, dict[str, Any]]] = {  # the tool, its argument for a command, what else it demands
    "mini-swe-agent": ("bash", "command", {}),
    "codex": ("exec_command", "cmd", {}),
    "opencode": ("bash", "command", {"description": "work"}),
    "qwen-coder": ("run_shell_command", "command", {"is_background": False}),
    "claude-code": ("Bash", "command", {"description": "work"}),
}
BOTH = list(SHELL)[:2]
ALL = first(2, SHELL)
TITLE = "A title"  # opencode asks for one, without tools
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
    name, field, more = SHELL[agent]
    arguments = json.dumps({field: command} | more, ensure_ascii=not spaced)
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


def answering(said: Said, template: ChatTemplate) -> Callable[[Request], Any]:
    """To requests with tools; in order, the last for ever after."""
    texts = said if callable(said) else iter([*said[:-1], *itertools.repeat(said[-1], 99)])

    def answer(asked: Request) -> Any:
        if "<tools>" not in template.tokenizer.decode(asked.prompt_T):
            return TITLE
        return texts(asked) if callable(texts) else next(texts)

    return answer


async def run(
    folder: Path, agent: str, said: Said, *, network: str = "no-network", **fields: Any
) -> tuple[Trajectory, ScriptedClient]:
    """One trial."""
    if "agents_dir" not in fields and not (AGENTS / "bin" / PROGRAMS[agent].program).is_file():
        pytest.skip(f"{agent} is not in {AGENTS}: scripts/agents/pack {AGENTS} {agent}")
    template = chat_of(QWEN_TOOLS)
    client, sampler = ScriptedClient(answering(said, template), template), PolicySampler(attempts=1)
    sampler.publish(client, 7)
    given: dict[str, Any] = {
        "model_name": "fake/policy", "tasks_dir": ".", "agent": agent, "agents_dir": str(AGENTS), "max_turns": 9,
        "context_limit": 300_000, "trial_timeout_sec": 3000.0,
    }  # fmt: skip
    config = Config(**given | fields)
    task = make_task(folder, test=TEST)
    task_toml = folder / task.name / "task.toml"
    task_toml.write_text(TASK_TOML.format(agent_timeout=1500.0) + f'network_mode = "{network}"\n')
    service = AgentService.of(template)
    context = TrialContext(
        config, sampler, template, RUN, Gates.of(config), Daemon(config.outage_limit_sec), agents=service
    )
    async with service.endpoint:
        trajectory = await run_trial(request_of(task, folder), context)
    return trajectory, client


@pytest.mark.parametrize("agent", ALL)
async def test_an_agent_solves_a_task_without_a_network_and_every_prompt_is_exact(agent: str, tmp_path: Path) -> None:
    trajectory, client = await run(tmp_path, agent, script(agent))
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    seen: defaultdict[int, list[int]] = defaultdict(list)
    prompts: list[list[int]] = []
    for turn in trajectory.turns:
        seen[turn.segment] += turn.new_tokens_T
        prompts.append(list(seen[turn.segment]))
        seen[turn.segment] += turn.completion_tokens_T
        assert turn.weights_version == 7
    assert sorted(prompts) == sorted(asked.prompt_T for asked in client.requests)
    own = [turn for turn in trajectory.turns if turn.segment not in trajectory.side_segments]
    assert len(own) == len(WORK) + 1
    assert {turn.text for turn in trajectory.turns if turn not in own} <= {TITLE}
    assert len({turn.segment for turn in own}) == 1
    assert trajectory.stats["wire_tokens_per_unique_token"] == 1.0
    folder = Path(trajectory.trial_dir)
    stored = json.loads((folder / "result.json").read_text())["agent_info"]
    packed = (AGENTS / f"{agent}.lock").read_text().split()[1]
    assert (stored["name"], stored["version"]) == (agent, packed)
    assert (folder / "agent" / "trajectory.json").is_file()


async def test_an_agent_is_answered_in_a_trial_with_a_network_too(tmp_path: Path) -> None:
    trajectory, _ = await run(tmp_path, "mini-swe-agent", script("mini-swe-agent", WORK[2:3]), network="public")
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    assert len(trajectory.turns) == 2


async def test_a_trainer_that_is_not_root_reaches_its_agent_through_a_relay(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """This test again, as another user in the daemon's group; it may read this machine's Python wherever that is."""
    if os.geteuid() == 0:
        tmp_path.chmod(0o777)
        group = os.stat("/var/run/docker.sock").st_gid
        may = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
        user = ["setpriv", "--reuid=65534", "--regid=65534", f"--groups={group}", *may]
        options = ["-o", "addopts=", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'other'}"]
        command = [*user, sys.executable, "-m", "pytest", *options, request.node.nodeid]
        plugins = os.environ.get("DOCKER_CONFIG", str(Path.home() / ".docker"))
        own = os.environ | {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "DOCKER_CONFIG": plugins}
        done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env=own, capture_output=True, text=True)
        assert "1 passed" in done.stdout, done.stdout[-3000:]
        return
    assert listener_problem() == "this process may not open a socket in a container's network, as root may"
    trajectory, client = await run(tmp_path, "mini-swe-agent", script("mini-swe-agent"))
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    assert trajectory.stats["wire_tokens_per_unique_token"] == 1.0
    assert len(trajectory.turns) == len(client.requests) == len(WORK) + 1


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[AgentSession]:
    """Those of the trials that the test runs."""
    made, seen = AgentService.session, list[AgentSession]()

    def noted(*given: Any) -> AgentSession:
        seen.append(made(*given))
        return seen[-1]

    monkeypatch.setattr(AgentService, "session", noted)
    return seen


async def test_the_key_is_in_no_file_of_the_trial(tmp_path: Path, sessions: list[AgentSession]) -> None:
    trajectory, _ = await run(tmp_path, "mini-swe-agent", script("mini-swe-agent"))
    assert trajectory.reward == 1.0
    key = sessions[0].key.encode()
    files = [path for path in Path(trajectory.trial_dir).rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if key in path.read_bytes()] == []


@pytest.mark.parametrize("agent", BOTH)
async def test_a_limit_ends_the_agent_and_its_work_is_graded(agent: str, tmp_path: Path) -> None:
    endless = [call(agent, "echo Hello > hello.txt")]
    trajectory, client = await run(tmp_path, agent, endless, max_turns=2)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.MAX_TURNS, 1.0), trajectory.detail
    assert len(client.requests) == len(trajectory.turns) == 2
    assert trajectory.stats["wire_refused_400"] >= 1
    assert trajectory.times["agent"] < trajectory.times["total"]


@pytest.mark.parametrize("agent", BOTH)
async def test_a_lost_server_is_no_fault_of_the_policy(agent: str, tmp_path: Path) -> None:
    said = iter([call(agent, "echo Hello > hello.txt")])

    def lost(_: Request) -> str:
        try:
            return next(said)
        except StopIteration:
            raise ConnectionError("gone") from None

    trajectory, _ = await run(tmp_path, agent, lost)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    assert trajectory.detail.startswith(SAMPLING) and "gone" in trajectory.detail


@pytest.mark.parametrize("agent", BOTH)
async def test_an_agent_that_the_policy_killed_is_the_policys_act(agent: str, tmp_path: Path) -> None:
    """Every process of the container but the trainer's own shells: what the policy may do to its agent."""
    kill = "echo Hello > hello.txt; for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -q /opt/agents && "
    trajectory, _ = await run(tmp_path, agent, [call(agent, f"{kill} kill -9 ${{p#/proc/}}; done; sleep 5")])
    assert (trajectory.outcome, trajectory.reward) == (Outcome.POLICY_ERROR, 1.0), trajectory.detail
    assert trajectory.detail.startswith("the agent failed: ")


async def test_a_full_context_ends_the_agent_and_its_work_is_graded(tmp_path: Path) -> None:
    endless = [call("mini-swe-agent", "echo Hello > hello.txt; seq 500")]
    # the byte tokenizer's prompt has some 4,000 tokens, so each answer's output fills up the rest
    trajectory, _ = await run(tmp_path, "mini-swe-agent", endless, context_limit=16_000, max_tokens=500, max_turns=50)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.CONTEXT_LENGTH, 1.0), trajectory.detail
    assert trajectory.stats["wire_refused_400"] == 1


async def test_an_agent_is_ended_at_its_deadline(tmp_path: Path, sessions: list[AgentSession]) -> None:
    """The trial's deadline comes during a command; the agent and its command end within seconds of it."""
    began: list[float] = []

    def last(_: Request) -> str:
        began.append(time.monotonic())
        sessions[0].deadline = asyncio.get_running_loop().time() + 3
        return call("mini-swe-agent", "echo Hello > hello.txt; sleep 500")

    trajectory, _ = await run(tmp_path, "mini-swe-agent", last)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.AGENT_TIMEOUT, 1.0), trajectory.detail
    assert len(began) == 1
    assert time.monotonic() - began[0] < 300, "the command did not run to its end"


async def test_an_agent_that_never_asks_is_no_fault_of_the_policy(tmp_path: Path) -> None:
    """Its program breaks before the first call, as Harbor's own install of mini-swe-agent does."""
    broken = tmp_path / "pack"
    (broken / "bin").mkdir(parents=True)
    program = broken / "bin" / "mini-swe-agent"
    program.write_text("#!/bin/sh\necho ModuleNotFoundError: No module named mcp\nexit 1\n")
    program.chmod(0o755)
    trajectory, client = await run(tmp_path, "mini-swe-agent", ["never"], agents_dir=str(broken))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    assert trajectory.detail.startswith("the agent never asked the policy: ")
    assert "ModuleNotFoundError: No module named mcp" in trajectory.detail
    assert client.requests == []


async def test_a_program_that_is_nowhere_stops_the_run_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its image has no program codex; set agents_dir=FOLDER"):
        await run(tmp_path, "codex", ["never"], agents_dir=None)


async def test_an_agent_whose_first_prompt_fills_the_context_is_refused_with_the_number(tmp_path: Path) -> None:
    said = script("mini-swe-agent")
    with pytest.raises(
        UserError, match=r"first prompt has \d{4} tokens of context_limit=5000; give at least context_l"
    ):
        await run(tmp_path, "mini-swe-agent", said, context_limit=5000, max_tokens=500)


async def test_what_the_policy_asks_itself_is_beside_its_own_turns(tmp_path: Path) -> None:
    """A command finds the key in its environment and asks; it gets an answer, without loss, and the run sees it."""
    body = '{"messages":[{"role":"user","content":"hi"}]}'
    ask = (
        f"B='{body}'; exec 3<>/dev/tcp/127.0.0.1/{PORT}; printf 'POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\n"
        "Authorization: Bearer %s\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n%s' "
        '"$OPENAI_API_KEY" ${#B} "$B" >&3; cat <&3'
    )
    said = script("mini-swe-agent", [f"bash -c {json.dumps(ask).replace('$', chr(92) + '$')}", WORK[2]])
    trajectory, _ = await run(tmp_path, "mini-swe-agent", [said[0], "I answer myself.", *said[1:]])
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0), trajectory.detail
    assert len(trajectory.side_segments) == 1
    beside = [turn.text for turn in trajectory.turns if turn.segment in trajectory.side_segments]
    assert beside == ["I answer myself."]
    assert trajectory.stats["wire_side_turns"] == 1


async def test_the_doctor_starts_the_program_in_the_tasks_images(tmp_path: Path) -> None:
    pack, task = tmp_path / "pack", make_task(tmp_path)
    (pack / "bin").mkdir(parents=True)
    program, folder = pack / "bin" / "codex", tmp_path / task.name
    program.write_text("#!/bin/sh\necho usage\n")
    program.chmod(0o755)
    (pack / "codex.lock").write_text("0123 0.169.0\n")
    config = Config(model_name="m", tasks_dir=".", agent="codex", agents_dir=str(pack))
    await prepare_images([folder], lambda *_: None, run_id=RUN)
    lines = await asyncio.to_thread(agent_lines, config, [folder])
    assert lines[1:] == [f"packed in {pack}: codex 0.169.0 (512 MB)", "agent=codex: codex starts in 1 images"]
    program.write_text("#!/bin/sh\necho \"version 'GLIBC_2.99' not found\" >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"agent=codex: task \S+: codex does not start in its image: .*GLIBC_2\.99"):
        await asyncio.to_thread(agent_lines, config, [folder])
