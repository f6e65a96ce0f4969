"""Conversations as text, from the token ids that were kept."""

import asyncio
from typing import Any

import pytest

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn, group_trajectories
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.policy.tinker_llm import TinkerLLM
from harbortrainer.run.conversations import Conversations, Transcriber, sampled_of
from harbortrainer.run.directory import RunDirectory
from tests.support.fakes import CHATML, LLAMA3, QWEN3, ScriptedClient, chat_template


def talk(template: Any, histories: list[list[dict[str, str]]], prompts: list[str], answers: list[str], **more: Any):
    """The turns that TinkerLLM records of such calls."""
    sampler = PolicySampler()
    sampler.publish(ScriptedClient(answers, template), 3)
    limits = {"max_tokens": 200, "temperature": 1.0, "context_limit": 4000} | more
    llm = TinkerLLM(sampler, template, **limits)

    async def calls() -> None:
        for history, prompt in zip(histories, prompts, strict=True):
            await llm.call(prompt, message_history=history)

    asyncio.run(calls())
    return Trajectory("t", "s000000-p00-g00", tuple(llm.turns), 1.0, Outcome.COMPLETED)


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.mark.parametrize("template", [QWEN3, CHATML, LLAMA3])
@pytest.mark.parametrize("thinking", [False, True])
def test_what_was_said_comes_back(template: str, thinking: bool) -> None:
    chat = chat_template(template, enable_thinking=thinking)
    history = [said("user", "Do this.\nAnd that."), said("assistant", "one")]
    trial = talk(chat, [[], history], ["Do this.\nAnd that.", "screen: $ ls"], ["one", "two"])
    messages = Transcriber(chat).conversation(trial)
    pairs = [(m["role"], m["content"]) for m in messages]
    assert pairs == [
        ("user", "Do this.\nAnd that."), ("assistant", "one"), ("user", "screen: $ ls"), ("assistant", "two"),
    ]  # fmt: skip


def test_a_rewritten_history_is_a_new_prompt_and_given_whole() -> None:
    chat = chat_template()
    rewritten = [said("user", "summary"), said("assistant", "noted")]
    trial = talk(chat, [[], rewritten], ["task", "go on"], ["one", "two"])
    roles = [m["role"] for m in Transcriber(chat).conversation(trial)]
    assert roles == ["user", "assistant", "history", "prompt", "assistant"]
    prompt = Transcriber(chat).conversation(trial)[3]["content"]
    assert all(part in prompt for part in ("summary", "noted", "go on"))


def test_thinking_and_truncation_are_shown() -> None:
    chat = chat_template(enable_thinking=True)
    trial = talk(chat, [[]], ["task"], ["<think>\nhm\n</think>\n\nanswer"])
    assert Transcriber(chat).conversation(trial)[1]["thinking"] == "hm"
    cut = talk(chat_template(), [[]], ["task"], ["a long answer"], max_tokens=6)
    message = Transcriber(chat_template()).conversation(cut)[1]
    assert message["truncated"] is True
    assert message["tokens"] == 6


def trial(name: str, task: str, reward: float | None) -> Trajectory:
    turn = Turn(0, (65,), (66,), (-0.1,), 0, text="B")
    outcome = Outcome.COMPLETED if reward is not None else Outcome.VERIFIER_ERROR
    return Trajectory(task, name, (turn,), reward, outcome)


def test_of_a_training_batch_one_trial_of_each_reward_is_kept(tmp_path) -> None:
    trials = [trial("g0", "a", 0.0), trial("g1", "a", 0.0), trial("g2", "a", 1.0), trial("g3", "a", None)]
    assert [t.trial_name for t in sampled_of([*trials, trial("h0", "b", 0.0)])] == ["g0", "g2", "g3", "h0"]
    conversations = Conversations(RunDirectory(tmp_path), chat_template())
    for batch in ("step_000001", "eval_000001"):
        conversations.save(batch, [group_trajectories("a", trials)])
    step, held_out = (read_lines(tmp_path / "conversations" / f"{b}_000001.jsonl") for b in ("step", "eval"))
    assert [line["trial"] for line in step] == ["g0", "g2", "g3"]
    assert [(line["trial"], line["reward"], line["outcome"]) for line in held_out] == [
        ("g0", 0.0, "completed"), ("g1", 0.0, "completed"), ("g2", 1.0, "completed"), ("g3", None, "verifier_error"),
    ]  # fmt: skip
