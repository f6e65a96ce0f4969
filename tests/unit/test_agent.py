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
