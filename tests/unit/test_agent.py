"""The agent against a fake terminal: whatever the policy writes, the trial goes on or ends quietly."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from harbor.models.agent.context import AgentContext

from src.policy_sampler import PolicySampler, SamplingError
from src.rollout.agent import TrainableTerminus2
from src.rollout.parser import AnswerParser
from src.rollout.terminal import EXEC_MARGIN_SEC, SCROLLBACK_LINES
from src.tinker_llm import TinkerLLM, registered
from tests.fakes import FakeEnvironment, ScriptedClient, chat_template, response


def answer(*keystrokes: str, complete: Any = False, wait: Any = 0.0) -> str:
    commands = [{"keystrokes": keys, "duration": wait} for keys in keystrokes]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": complete})


DONE = answer(complete=True)


class Rig:
    """One agent with a scripted policy in a fake environment."""

    def __init__(self, folder: Path, answers: Any, reply: Any = None, **options: Any) -> None:
        limits = {"max_tokens": 4096, "context_limit": 30000} | {
            name: options.pop(name) for name in ("max_tokens", "context_limit") if name in options
        }
        template = chat_template()
        self.client = ScriptedClient(answers, template)
        sampler = PolicySampler(attempts=1)
        sampler.publish(self.client, 0)
        self.llm = TinkerLLM(sampler, template, temperature=1.0, **limits)
        self.environment: Any = FakeEnvironment(reply)
        self.context = AgentContext()
        self.folder = folder
        with registered("t", self.llm):
            self.agent = TrainableTerminus2(
                logs_dir=folder,
                model_name="fake/policy",
                llm_kwargs={"name": "t"},
                record_terminal_session=False,
                suppress_max_turns_warning=True,
                **{"max_turns": 5, "enable_summarize": False} | options,
            )

    async def run(self) -> str:
        await self.agent.setup(self.environment)
        await self.agent.run("Do it.", self.environment, self.context)
        assert self.context.metadata is not None
        return self.context.metadata["stop_reason"]

    @property
    def typed(self) -> list[str]:
        return [command for command in self.environment.commands if "send-keys" in command]


async def test_done_after_saying_so_twice(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [answer("ls\n"), DONE, DONE, "never"])
    assert await rig.run() == "done"
    assert len(rig.llm.turns) == 3 and rig.llm.parse_failures == 0
    assert len(rig.typed) == 1 and "ls" in rig.typed[0]


async def test_max_turns_counts_answers_that_did_not_parse(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ["garbage", "", answer("ls\n")], max_turns=4)
    assert await rig.run() == "max_turns"
    assert len(rig.llm.turns) == 4 and rig.llm.parse_failures == 2
    assert rig.context.metadata and rig.context.metadata["parse_failures"] == 2


@pytest.mark.parametrize(
    "nasty",
    [
        "",
        "[" * 3000,
        '{"commands": ' + "[" * 3000,
        '{"analysis": "", "plan": "", "commands": [{"keystrokes": "x", "duration": ' + "9" * 5000 + "}]}",
        '{"analysis": "", "plan": "", "commands": [{"keystrokes": "x", "duration": 1e999}]}'.replace("x", ""),
        '{"analysis": "", "plan": "", "commands": [{"keystrokes": "", "duration": NaN}]}',
        '{"analysis": "", "plan": "", "commands": [{"keystrokes": "", "duration": -5}]}',
        '{"analysis": {"\\ud83d": 1}, "plan": ["\\udc00"], "commands": [], "task_complete": {}}',
        '{"analysis": "\\ud83d", "plan": "\\u0000", "commands": [{"keystrokes": "\\ud83d\\u0000", "\\ud83d": 1}]}',
        '{"analysis": "", "plan": "", "commands": {"keystrokes": "x"}}',
        '{"analysis": "", "plan": "", "commands": [null, 3, "x"]}',
        "[1, 2]",
        "\ufffd\u2028}{",
    ],
)
async def test_nasty_answers_are_turns_like_any_other(tmp_path: Path, nasty: str) -> None:
    rig = Rig(tmp_path, [nasty, DONE], max_tokens=10000)
    assert await rig.run() == "done"
    waits = [int(wait) for command in rig.environment.commands for wait in re.findall(r"^begin (\S+)", command, re.M)]
    assert all(0 <= hundredths <= 6000 for hundredths in waits)
    assert all("\0" not in command and command.encode() for command in rig.environment.commands)
    assert json.loads((tmp_path / "trajectory.json").read_text())["steps"]


async def test_full_context_ends_the_trial_quietly(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ["x" * 900], context_limit=6500, max_tokens=1000, max_turns=50)
    assert await rig.run() == "context_length"
    assert rig.llm.turns and rig.llm.fault is None


async def test_a_fault_of_the_sampler_is_not_swallowed_nor_tried_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, lambda request: response([1], logprobs_T=[]))
    with pytest.raises(SamplingError):
        await rig.run()
    assert len(rig.client.requests) == 1 and rig.llm.stop_reason == "interrupted"


async def test_own_deadline_stops_the_agent_and_lets_the_work_be_graded(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [answer("sleep\n", wait=30)], max_turns=1000)
    hang = asyncio.Event()
    execute = rig.environment.exec

    async def wait(command: str, **named: Any) -> Any:
        if "send-keys" in command:
            await hang.wait()
        return await execute(command, **named)

    rig.environment.exec = wait
    rig.llm.deadline = asyncio.get_running_loop().time() + 0.2
    assert await rig.run() == "timeout"
    assert len(rig.llm.turns) == 1


@pytest.mark.parametrize(
    "said", ["no server running on /tmp/tmux-0/default", "can't find session: terminus-2", "error connecting to /tmp/x"]
)
async def test_a_shell_that_the_policy_ended_is_no_error(tmp_path: Path, said: str) -> None:
    ended = False

    def reply(command: str) -> tuple[int, str]:
        nonlocal ended
        if "has-session" in command and ended:
            return 0, "up\ngone"
        ended = ended or "'exit\n'" in command
        return (1, said) if ended else (0, "40\n$ ")

    rig = Rig(tmp_path, [answer("exit\n", "ls\n", "ls\n"), DONE], reply)
    assert await rig.run() == "session_ended"
    assert len(rig.llm.turns) == 1 and len(rig.typed) == 1


@pytest.mark.parametrize("answer_of_the_container", [(137, ""), (1, "container is not running"), (0, "")])
async def test_a_terminal_that_ended_with_its_container_is_the_infrastructures(
    tmp_path: Path, answer_of_the_container: tuple[int, str]
) -> None:
    stopped = False

    def reply(command: str) -> tuple[int, str]:
        nonlocal stopped
        if "has-session" in command and stopped:
            return answer_of_the_container
        stopped = stopped or "send-keys" in command
        return (1, "no server running on /tmp/tmux-0/default") if stopped else (0, "40\n$ ")

    with pytest.raises(RuntimeError, match="no server running"):
        await Rig(tmp_path, [answer("ls\n")], reply).run()


async def test_keys_that_an_old_tmux_refuses_are_pasted_and_the_rest_goes_on(tmp_path: Path) -> None:
    def reply(command: str) -> tuple[int, str]:
        if "z" * 5000 in command:
            return 1, "failed 1\ncommand too long"
        return 0, "40\n$ "

    rig = Rig(tmp_path, [answer("first\n", "z" * 5000, "last\n"), DONE, DONE], reply, max_tokens=9000)
    assert await rig.run() == "done"
    refused, *pasting, last = [c for c in rig.environment.commands if re.search("first|paste|base64|last", c)]
    assert "first" in refused and "load-buffer" in "".join(pasting)
    assert "last" in last and "first" not in last


async def test_keys_beyond_a_command_line_are_pasted_in_order(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [answer("first\n", "z" * 20000, "last\n"), DONE, DONE], max_tokens=30000, context_limit=90000)
    assert await rig.run() == "done"
    order = [c for c in rig.environment.commands if re.search("first|paste-buffer|last", c)]
    assert ["first" in c for c in order] == [True, False, False] and "last" in order[-1]


async def test_every_command_of_the_terminal_has_a_limit(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [answer("a\n", "b\n", wait=5), DONE, DONE])
    assert await rig.run() == "done"
    assert all(limit for limit in rig.environment.limits)
    assert max(rig.environment.limits) == 10 + EXEC_MARGIN_SEC


async def test_an_answer_is_one_command_of_the_container(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [answer("a\n", "b\n"), DONE, DONE])
    assert await rig.run() == "done"
    assert len(rig.environment.commands) == 2 + len(rig.llm.turns)  # start, first screen, and the turns'


async def test_a_terminal_that_cannot_be_read_is_the_infrastructures(tmp_path: Path) -> None:
    def reply(command: str) -> tuple[int, str]:
        return (1, "Cannot connect to the Docker daemon") if "capture-pane" in command else (0, "up\nalive")

    with pytest.raises(RuntimeError, match="Docker daemon"):
        await Rig(tmp_path, [DONE], reply).run()


async def test_a_terminal_that_cannot_be_typed_into_is_the_infrastructures(tmp_path: Path) -> None:
    def reply(command: str) -> tuple[int, str]:
        return (1, "failed 0\ncontainer is not running") if "send-keys" in command else (0, "40\n$ ")

    with pytest.raises(RuntimeError, match=r"typing into the terminal failed with 1: failed 0\scontainer"):
        await Rig(tmp_path, [answer("ls\n")], reply).run()


@pytest.mark.parametrize("failing", ["send-keys", "capture-pane -p -S"])
async def test_a_failure_without_a_word_is_the_policys_where_only_tmux_is_gone(tmp_path: Path, failing: str) -> None:
    killed = False

    def reply(command: str) -> tuple[int, str]:
        nonlocal killed
        killed = killed or "send-keys" in command
        if killed and failing in command:
            return 137, ""
        return (0, "up\ngone") if "has-session" in command else (0, "40\n$ ")

    assert await Rig(tmp_path, [answer("kill -9 -1\n"), DONE], reply).run() == "session_ended"


async def test_terminal_is_bounded_and_waited_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [DONE, DONE])
    await rig.run()
    start = rig.environment.commands[0]
    assert "new-session" in start and "head -c" in start and "cursor_x" in start and "cat >" not in start
    assert any(f"-S -{SCROLLBACK_LINES}" in command for command in rig.environment.commands)


async def test_tmux_is_installed_where_it_is_missing(tmp_path: Path) -> None:
    installed = False

    def reply(command: str) -> tuple[int, str]:
        nonlocal installed
        if "apt-get install" in command:
            installed = True
        return (127, "tmux: not found") if "tmux" in command and not installed else (0, "40\n$ ")

    rig = Rig(tmp_path, [DONE, DONE], reply)
    assert await rig.run() == "done" and installed


async def test_trajectory_is_written_once_without_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    dump = TrainableTerminus2._dump_trajectory_with_continuation_index
    monkeypatch.setattr(
        TrainableTerminus2,
        "_dump_trajectory_with_continuation_index",
        lambda self, index: (writes.append(index), dump(self, index))[1],
    )
    rig = Rig(tmp_path, [answer("ls\n"), answer("ls\n"), DONE, DONE])
    await rig.run()
    text = (tmp_path / "trajectory.json").read_text()
    assert writes == [0] and "token_ids" not in text and len(json.loads(text)["steps"]) == 5
    assert not rig.context.rollout_details


async def test_summarising_a_full_context_opens_segments_and_goes_on(tmp_path: Path) -> None:
    said = ["y" * 1500, "y" * 1500, "the summary", "five questions", "the answers", DONE, DONE]
    rig = Rig(
        tmp_path,
        said,
        context_limit=8400,
        max_tokens=2000,
        max_turns=20,
        enable_summarize=True,
        proactive_summarization_threshold=3500,
    )
    assert await rig.run() == "done"
    assert [turn.segment for turn in rig.llm.turns] == [0, 0, 0, 1, 0, 2, 2]


async def test_a_fault_while_summarising_is_not_swallowed(tmp_path: Path) -> None:
    def reply(request: Any) -> Any:
        return response([1], logprobs_T=[]) if len(rig.client.requests) == 3 else "y" * 1500

    rig = Rig(
        tmp_path,
        reply,
        context_limit=8400,
        max_tokens=2000,
        enable_summarize=True,
        proactive_summarization_threshold=3500,
    )
    with pytest.raises(SamplingError):
        await rig.run()
    assert len(rig.client.requests) == 3


def test_parser_counts_and_cleans() -> None:
    parser = AnswerParser()
    parsed = parser.parse_response(answer("\ud83d\0ls\n", wait=float("inf")))
    assert [(command.keystrokes, command.duration) for command in parsed.commands] == [("\ufffdls\n", 1.0)]
    assert parser.failures == 0
    parser.parse_response("no json")
    assert parser.failures == 1
