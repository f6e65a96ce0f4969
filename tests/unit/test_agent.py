"""The agent against a fake terminal: whatever the policy writes, the trial goes on or ends quietly."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.policy.sampler import SamplingError
from tests.support.fakes import response
from tests.support.scripted_agent import DONE, Rig, answer
from tests.support.virtual_time import in_virtual_time


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
    rig.llm.deadline = asyncio.get_running_loop().time() + 1.0  # in which the keys are sent
    assert await rig.run() == "timeout"
    assert len(rig.llm.turns) == 1


def test_an_environment_that_hangs_is_no_timeout_of_the_agent(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [answer("ls\n", wait=0)])
    execute = rig.environment.exec

    async def hang(command: str, **named: Any) -> Any:
        if "send-keys" in command:
            await asyncio.Event().wait()
        return await execute(command, **named)

    rig.environment.exec = hang
    with pytest.raises(RuntimeError, match="did not answer the terminal"):
        in_virtual_time(rig.run())


async def test_trajectory_is_written_once_without_ids(tmp_path: Path) -> None:
    file, texts = tmp_path / "trajectory.json", iter([answer("ls\n"), answer("ls\n"), DONE, DONE])
    rig = Rig(tmp_path, lambda _: "" if file.exists() else next(texts))
    await rig.run()
    assert "token_ids" not in file.read_text() and len(json.loads(file.read_text())["steps"]) == 5
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
