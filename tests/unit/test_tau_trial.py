"""Conversations of venue tau from request to trajectory: gold, malformed, hostile, faults of others, files."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker

from harbortrainer.bundled.tau.domain import GREETING
from harbortrainer.bundled.tau.trial import run_conversation
from harbortrainer.bundled.tau.user import ModelUser, NewUser, ScriptedUser, TauUser
from harbortrainer.bundled.tau.venue import SCRIPTED, VENUE, TauVenue
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.other_models import users
from harbortrainer.report.panel import talk
from harbortrainer.rollout.quarantine import SAMPLING, UNANSWERED, blames_task
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.run.conversations import Transcriber
from harbortrainer.run.ledger import Ledger
from harbortrainer.tasks.sources import find_sources, load_sources
from harbortrainer.tasks.task import Task
from tests.support.families import LLAMA, QWEN_TOOLS, chat_of
from tests.support.tau_parts import config, gold_texts, needs_tau2, parts, request, stored
from tests.support.tools import written

pytestmark = needs_tau2
CHAT = chat_of(QWEN_TOOLS)
MOCK = load_sources(find_sources("tau:mock")) if not needs_tau2.args[0] else []


@cache
def of_customers() -> dict[str, Task]:
    """Tasks of retail and airline by name."""
    return {task.name: task for task in load_sources(find_sources("tau:retail,tau:airline"))}


def text_of(ids: Sequence[int]) -> str:
    return CHAT.tokenizer.decode(ids)


def mock(key: str = "create_task_1") -> Task:
    return next(task for task in MOCK if task.ref == f"mock:{key}")


async def talked(
    answers: Any, folder: Path, task: Task | None = None, new_user: NewUser = ScriptedUser, **fields: Any
) -> Trajectory:
    made, _ = parts(answers, **fields)
    return await run_conversation(request(task or mock(), folder), made, new_user)


class Says(TauUser):
    """A user that says these texts, the last one for ever."""

    def __init__(self, *replies: str | users.Said | Exception) -> None:
        self.replies, self.heard = list(replies), []

    def __call__(self, *_: Any) -> "Says":
        return self

    async def reply(self, heard: Sequence[Mapping[str, Any]]) -> users.Said:
        self.heard.append(list(heard))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return users.Said(reply) if isinstance(reply, str) else reply


async def test_turns_prompts_and_files_of_one_conversation(tmp_path: Path) -> None:
    task = of_customers()["retail-0"]
    texts = gold_texts(task, CHAT)
    made, client = parts(texts)
    trajectory = await run_conversation(request(task, tmp_path), made, ScriptedUser)
    assert (trajectory.reward, trajectory.outcome, len(trajectory.turns)) == (1.0, Outcome.COMPLETED, len(texts))
    assert {turn.segment for turn in trajectory.turns} == {0} and trajectory.stats["tool_calls"] == len(texts) - 1
    first = text_of(client.requests[0].prompt_T)
    assert "<policy>\n# Retail agent policy" in first and '"name": "cancel_pending_order"' in first
    assert first.index(GREETING) < first.index("<|im_start|>user\n")
    kept = stored(tmp_path)
    assert (kept["termination_reason"], kept["task_id"], kept["grades"]) == (
        "user_stop",
        "0",
        {"DB": 1, "COMMUNICATE": 1},
    )
    assert kept["messages"][0]["content"] == GREETING and kept["messages"][-1]["content"] == "###STOP###"
    roles = [message["role"] for message in kept["messages"]]
    assert roles.count("tool") == len(texts) - 1 and kept["tools"] and kept["system"].startswith("<instructions>")
    assert {"environment", "agent", "user", "sampling", "total"} <= trajectory.times.keys()
    messages = Transcriber(CHAT).conversation(trajectory)
    assert [one["role"] for one in messages[:4]] == ["system", "assistant", "user", "assistant"]
    assert messages[3]["calls"][0]["name"] in texts[0] and messages[4]["role"] == "tool"
    shown = talk(tmp_path / trajectory.trial_name)
    assert [one["role"] for one in shown[:6]] == ["system", "tools", "agent", "user", "agent", "result"]
    assert shown[4]["calls"] and shown[-1] == {"role": "user", "text": "###STOP###"}


MALFORMED = [
    "<tool_call>\n{", "<tool_call>\n{}\n</tool_call>", "<tool_call>\n[]\n</tool_call>", "<tool_call>",
    '<tool_call>\n{"name": 3}\n</tool_call>', '<tool_call>\n{"name": "get_users", "arguments": 4}\n</tool_call>',
    '<tool_call>\n{"name": "get_users", "arguments": {"a": NaN}}\n</tool_call>', "", "   \n", "<think>\n\n</think>",
]  # fmt: skip


@pytest.mark.parametrize("answer", MALFORMED)
async def test_an_answer_that_is_no_message_gets_one_result_and_is_counted(answer: str, tmp_path: Path) -> None:
    gold = gold_texts(mock(), CHAT)
    trajectory = await talked([answer, *gold], tmp_path)
    assert (trajectory.reward, trajectory.outcome) == (1.0, Outcome.COMPLETED)
    failed = trajectory.stats["parse_failures"] + trajectory.stats["empty_answers"]
    assert failed == 1 or trajectory.stats["tool_errors"] == 1
    shown = stored(tmp_path)["shown"]
    assert next(message for message in shown if message["role"] == "tool")["error"]


async def test_several_calls_of_an_answer_run_in_order_and_its_text_is_not_shown(tmp_path: Path) -> None:
    made = written(CHAT, "create_task", {"user_id": "user_1", "title": "Important Meeting"})
    listed = written(CHAT, "get_users", {})
    user = Says("Please.", "###STOP###")
    trajectory = await talked([f"A secret.\n{made}\n{listed}", "Done."], tmp_path, new_user=user)
    assert trajectory.reward == 1.0 and len(trajectory.turns) == 2
    results = [message["content"] for message in stored(tmp_path)["messages"] if message["role"] == "tool"]
    assert '"task_2"' in results[0] and '"task_2"' in results[1]
    assert [message["content"] for message in user.heard[-1]] == [GREETING, "Please.", "Done."]
    after = text_of(trajectory.turns[1].new_tokens_T)
    assert after.count("<tool_response>") == 2 and after.count("<|im_start|>user") == 1


@pytest.mark.parametrize(
    ("fields", "outcome"), [({"max_turns": 3}, Outcome.MAX_TURNS), ({"context_limit": 4600}, Outcome.CONTEXT_LENGTH)]
)
async def test_limits_of_the_run_give_0(fields: dict[str, Any], outcome: Outcome, tmp_path: Path) -> None:
    trajectory = await talked(["Is that so?" * 20], tmp_path, new_user=Says("go on"), **fields)
    assert (trajectory.reward, trajectory.outcome) == (0.0, outcome) and trajectory.turns
    kept = stored(tmp_path)
    assert (kept["termination_reason"], kept["outcome"], kept["reward"]) == ("max_steps", str(outcome), 0.0)


@pytest.mark.parametrize(
    "user",
    [
        Says(users.UserFault("the endpoint does not answer")),
        Says("hello", users.UserFault("status 500")),
        Says(""),
        Says("hello", "  \n"),
        Says("###STOP###"),
    ],
)
async def test_faults_of_the_user_are_no_reward(user: Says, tmp_path: Path) -> None:
    trajectory = await talked(["Is that so?"], tmp_path, new_user=user)
    assert (trajectory.reward, trajectory.outcome) == (None, Outcome.INFRASTRUCTURE_ERROR)
    assert trajectory.detail.startswith("user: ") and not blames_task(trajectory)


async def test_a_user_whose_first_text_fills_the_context_is_no_failure_of_the_policy(tmp_path: Path) -> None:
    """It was a reward of 0 for a policy that was never asked."""
    trajectory = await talked(["x"], tmp_path, new_user=Says("my story " * 2000), context_limit=3000)
    assert (trajectory.reward, trajectory.outcome, trajectory.turns) == (None, Outcome.INFRASTRUCTURE_ERROR, ())
    assert trajectory.detail.startswith("user: before the policy's first turn, the prompt has ")
    assert not blames_task(trajectory)


async def test_faults_of_sampling_are_no_reward(tmp_path: Path) -> None:
    def broken(_: Any) -> Any:
        raise tinker.APIConnectionError(request=httpx.Request("POST", "http://server"))

    trajectory = await talked(broken, tmp_path)
    assert (trajectory.reward, trajectory.outcome) == (None, Outcome.INFRASTRUCTURE_ERROR)
    assert trajectory.detail.startswith(SAMPLING)
    late = await talked(lambda _: None, tmp_path, trial_timeout_sec=0.05)
    assert late.reward is None and late.detail == UNANSWERED and not blames_task(late)


class Silent(TauUser):
    async def reply(self, heard: Sequence[Mapping[str, Any]]) -> users.Said:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_silent_user_at_the_end_of_the_time_is_no_fault_of_the_task(tmp_path: Path) -> None:
    """It counted against the task, which was left out of the run after three."""
    late = await talked(["x"], tmp_path, new_user=lambda *_: Silent(), trial_timeout_sec=0.5)
    assert late.detail == "user: not over after trial_timeout_sec=0.5" and not blames_task(late)
    assert late.reward is None and late.outcome is Outcome.INFRASTRUCTURE_ERROR


async def test_an_error_of_the_grade_is_no_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Any) -> dict[str, float]:
        raise ValueError("no such field")

    monkeypatch.setattr("harbortrainer.bundled.tau.exchange.Dialogue.parts", fails)
    trajectory = await talked(["Done."], tmp_path)
    assert (trajectory.reward, trajectory.outcome) == (None, Outcome.VERIFIER_ERROR)


async def test_the_ledger_has_the_turns_and_the_users_tokens_of_a_cancelled_conversation(tmp_path: Path) -> None:
    asked = asyncio.Event()

    class Paid(Says):
        @property
        def stats(self) -> dict[str, float]:
            return {"user_prompt_tokens": 70.0, "user_sampled_tokens": 9.0}

    def answer(_: Any) -> Any:
        if len(client.requests) < 2:
            return "Who are you?"
        asked.set()
        return None

    made, client = parts(answer)
    ledger, venue = Ledger(tmp_path / "ledger.jsonl"), TauVenue(Paid("me"))
    rollouts = Rollouts(made.config, made.sampler, made.template, "run", ledger, venues={"tau": venue})
    async with rollouts.opened([mock()], lambda _: None):
        running = asyncio.create_task(rollouts.run_groups([mock()], 1, tmp_path / "trials", step=0, temperature=1.0))
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    ended = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[-1])
    assert (ended["fate"], ended["turns"]) == ("cancelled", 1), "they were paid for"
    assert (ended["user_prompt_tokens"], ended["user_sampled_tokens"]) == (70, 9)


@pytest.mark.parametrize("task", MOCK, ids=lambda task: task.name)
async def test_a_tasks_own_history_opens_the_first_prompt(task: Task, tmp_path: Path) -> None:
    trajectory = await talked(["Done."], tmp_path, task, new_user=Says("hello", "###STOP###"))
    assert trajectory.outcome is Outcome.COMPLETED and trajectory.reward in (0.0, 1.0)
    kept = stored(tmp_path)["messages"]
    assert all(message["content"] in CHAT.answer(trajectory.turns[0].new_tokens_T).text for message in kept[:1])


def test_what_cannot_run_is_refused_before_anything_is_spent() -> None:
    tasks = [of_customers()["retail-0"]]
    assert VENUE.check(tasks, config(), CHAT, 1) == [SCRIPTED]
    with pytest.raises(UserError, match=r"context_limit=2000: the first prompt of tau:retail has \d+ tokens"):
        VENUE.check(tasks, config(context_limit=2000), CHAT, 1)
    with pytest.raises(UserError, match="tool"):
        VENUE.check(tasks, config(), chat_of(LLAMA), 1)


def test_a_scripted_user_is_deterministic_and_ends() -> None:
    async def texts() -> list[str]:
        from harbortrainer.bundled.tau.domain import domain

        user = ScriptedUser(domain("retail"), domain("retail").task("0"), 1)
        asked = [GREETING, "May I have your email?", "Shall I cancel it (yes/no)?", "All done."]
        return [(await user.reply([{"role": "assistant", "content": text}])).text for text in asked]

    first, second = asyncio.run(texts()), asyncio.run(texts())
    assert first == second and first[2:] == ["Yes.", "###STOP###"] and first[1] in first[0]


async def test_half_a_character_in_an_argument_does_not_break_the_record(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "create_task", "arguments": {"user_id": "user_1", "title": "\\ud83d"}}\n</tool_call>'
    trajectory = await talked([call, "Done."], tmp_path)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 0.0) and stored(tmp_path)["messages"]


class Model(users.User):
    """A model that plays a user: it repeats what it was asked, and counts."""

    def __init__(self) -> None:
        self.asked: list[list[Mapping[str, Any]]] = []

    @property
    def stats(self) -> dict[str, float]:
        return {"user_prompt_tokens": 7.0 * len(self.asked)}

    async def reply(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> users.Said:
        self.asked.append([*messages])
        return users.Said("###STOP###" if len(self.asked) > 1 else "Hello.")


async def test_a_model_plays_the_user_with_tau2s_instructions_and_roles_flipped(tmp_path: Path) -> None:
    model = Model()
    task = of_customers()["airline-0"]
    trajectory = await talked(["What?"], tmp_path, task, new_user=lambda place, task, _: ModelUser(model, place, task))
    assert trajectory.outcome is Outcome.COMPLETED and trajectory.stats["user_prompt_tokens"] == 14.0
    system, *said = model.asked[1]
    assert "<scenario>" in system["content"] and "###STOP###" in system["content"]
    assert [(one["role"], one["content"]) for one in said] == [
        ("user", GREETING), ("assistant", "Hello."), ("user", "What?"),
    ]  # fmt: skip
