"""Users of telecom that call tools of their own: over HTTP, through the base model, with faults of every kind."""

import json
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.bundled.tau.domain import domain
from harbortrainer.bundled.tau.trial import MOST_CALLS_IN_A_ROW
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.other_models.users import MOST_TRIES
from harbortrainer.rollout.quarantine import blames_task
from tests.support.chat_server import ChatServer, Reply, calls, chat_server, says
from tests.support.families import LLAMA_TOOLS, chat_of
from tests.support.tau_parts import needs_tau2, request, stored
from tests.support.tau_users import CHAT, Answers, base_users, gold_of_telecom, played, telecom, users_of, with_users
from tests.support.tools import written

pytestmark = needs_tau2
LOOK = ("check_status_bar", {})


async def talked(folder: Path, answers: Any, user: Answers) -> tuple[Trajectory, ChatServer]:
    async with played(answers, user) as (room, server, _):
        return await room.run(request(telecom()[0], folder)), server


async def test_gold_of_users_that_call_their_tools_over_http_earns_1(tmp_path: Path) -> None:
    """Of some tasks; tests/integration/test_tau_run.py has all 114."""
    assert [await gold_of_telecom(task, tmp_path / task.name) for task in telecom()[::57]] == [1.0, 1.0]


async def test_a_users_calls_act_on_its_own_phone_and_the_policy_does_not_see_them(tmp_path: Path) -> None:
    user = [says("It fails."), calls(LOOK, ("toggle_airplane_mode", {})), says("I looked."), says("###STOP###")]
    trajectory, server = await talked(tmp_path, ["Look.", "Bye."], user)
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.COMPLETED, 2)
    first, later = server.requests[0], server.requests[2]
    assert {tool["function"]["name"] for tool in first["tools"]} == {*(f["function"]["name"] for f in
        domain("telecom").user_schemas)} and "Make a tool call" in first["messages"][0]["content"]  # fmt: skip
    calling, *results = later["messages"][-3:]
    assert [call["id"] for call in calling["tool_calls"]] == [one["tool_call_id"] for one in results]
    assert [json.loads(call["function"]["arguments"]) for call in calling["tool_calls"]] == [{}, {}]
    assert results[0]["role"] == "tool" and "Status Bar" in results[0]["content"]
    kept = [message for message in stored(tmp_path)["messages"] if message["role"] == "tool"]
    assert [message["requestor"] for message in kept] == ["user", "user"]
    seen = CHAT.answer(trajectory.turns[1].new_tokens_T).text
    assert "I looked." in seen and results[0]["content"] not in seen and "toggle_airplane" not in seen


async def test_a_text_beside_calls_is_not_shown_and_ends_nothing(tmp_path: Path) -> None:
    user = [says("It fails."), calls(LOOK, text="###STOP### secret"), says("I looked."), says("###STOP###")]
    trajectory, _ = await talked(tmp_path, ["Look.", "Bye."], user)
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.COMPLETED, 2)
    assert "secret" not in CHAT.answer(trajectory.turns[1].new_tokens_T).text


UNREADABLE = [("check_status_bar", "{"), ("check_status_bar", "[1]"), ("", {}), ("set_network_mode_preference", "")]


@pytest.mark.parametrize("call", UNREADABLE)
async def test_a_call_that_cannot_be_read_is_asked_for_again_and_then_a_fault(call: Any, tmp_path: Path) -> None:
    good = [says("It fails."), calls(call), calls(LOOK), says("###STOP###")]
    trajectory, server = await talked(tmp_path, ["Look."], good)
    assert trajectory.outcome is Outcome.COMPLETED and trajectory.reward == 0.0
    assert "could not be read: call 1 of 1: " in server.requests[2]["messages"][-1]["content"]
    assert not any("could not be read" in str(one) for one in stored(tmp_path)["messages"])
    bad, server = await talked(tmp_path, ["Look."], [says("It fails."), calls(call)])
    assert (bad.reward, bad.outcome) == (None, Outcome.INFRASTRUCTURE_ERROR) and not blames_task(bad)
    assert "its calls cannot be read" in bad.detail and len(server.requests) == 1 + MOST_TRIES


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (calls(("no_such_tool", {})), "10 of the 10 failed calls are the user's"),
        (calls(LOOK), f"called tools {MOST_CALLS_IN_A_ROW} times in a row and said nothing"),
        ((200, {"choices": [{"message": {"tool_calls": [{"id": "x"}]}}]}), "its answer has no choices"),
        ((500, "gone"), "status 500"),
    ],
)
async def test_what_only_the_user_does_wrong_is_never_a_reward(reply: Reply, words: str, tmp_path: Path) -> None:
    async with chat_server([says("It fails."), reply]) as server, users_of(server, patience_sec=0.1) as users:
        trial = await with_users(["Look."], users).run(request(telecom()[0], tmp_path))
    assert (trial.reward, trial.outcome) == (None, Outcome.INFRASTRUCTURE_ERROR) and not blames_task(trial)
    assert trial.detail.startswith("user: ") and words in trial.detail
    assert trial.stats["user_prompt_tokens"] > 0, "what it cost counts"


async def test_ten_errors_of_the_policy_are_its_own_whatever_the_user_did(tmp_path: Path) -> None:
    user = [says("Hi."), calls(("no_such_tool", {})), says("Hm.")]
    trajectory, _ = await talked(tmp_path, ["Look.", *["<tool_call>{"] * 9], user)
    assert trajectory.outcome is Outcome.INFRASTRUCTURE_ERROR, "9 of 10 are the policy's"
    alone, _ = await talked(tmp_path, ["<tool_call>{"], user)
    assert (alone.reward, alone.outcome) == (0.0, Outcome.POLICY_ERROR)


async def test_an_endpoint_that_takes_no_tools_is_refused_before_any_trial() -> None:
    def answer(body: dict[str, Any]) -> Reply:
        return (400, "tool choice requires --enable-auto-tool-choice") if "tools" in body else says("yes")

    async with played(["x"], answer) as (room, _, users):
        await users.check()
        with pytest.raises(UserError, match=r"^user=.*: status 400: tool choice .*; check url"):
            async with room.prepared(telecom()[:1], lambda _: None):
                pass


async def test_the_base_model_calls_a_users_tools_in_its_own_template(tmp_path: Path) -> None:
    answers = ["It fails.", written(CHAT, *LOOK), "<tool_call>{", "I looked.", "###STOP###"]
    users, client, _ = base_users(answers, chat=CHAT)
    trial = await with_users(["Look.", "Bye."], users).run(request(telecom()[0], tmp_path))
    assert (trial.outcome, len(trial.turns)) == (Outcome.COMPLETED, 2)
    prompts = [CHAT.tokenizer.decode(one.prompt_T) for one in client.requests]
    assert '"name": "check_status_bar"' in prompts[0] and "<tool_response>" in prompts[2]
    assert "the tag that ends it is missing" in prompts[3]
    assert trial.stats["user_sampled_tokens"] == sum(len(CHAT.completion(text)) for text in answers)


async def test_a_template_with_one_call_an_answer_serves_users_too(tmp_path: Path) -> None:
    chat = chat_of(LLAMA_TOOLS)
    two = written(chat, *LOOK) + "; " + written(chat, *LOOK)
    users, client, _ = base_users(["Hi.", two, written(chat, *LOOK), "###STOP###"], chat=chat)
    trial = await with_users(["Look."], users).run(request(telecom()[0], tmp_path))
    assert trial.outcome is Outcome.COMPLETED and len(client.requests) == 4
