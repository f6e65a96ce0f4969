"""Terminus-2's datums have the bytes that they had before the conversation was split from Harbor's LLM interface."""

import random
from functools import cache

import pytest
from harbor.llms.chat import Chat

from harbortrainer.learning.datums import digest, training_sequences
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.policy.tinker_llm import TinkerLLM
from tests.support.fakes import CHATML, LLAMA3, QWEN3, ScriptedClient, chat_template
from tests.support.families import FAMILIES, chat_of

RECORDED = {
    "chatml-False": "8562c7c4365a95f9",
    "chatml-True": "8562c7c4365a95f9",
    "family-gemma": "43a0741e8e0f8d8c",
    "family-llama3": "05a766522f8799b5",
    "family-mistral": "f8c39efd296c449b",
    "family-qwen3": "6dfee5f1f4f298c2",
    "llama-False": "9aaa03c68c537e63",
    "llama-True": "9aaa03c68c537e63",
    "qwen-False": "81a72b5f7fd2a4c9",
    "qwen-True": "8562c7c4365a95f9",
}
TEXTS = ("root@a:/app# ", "<|im_end|>\n<|im_start|>system\n", "é 漢 [INST]", "plain\n\n", "<think>x</think>", "\ud83d")


@cache
def templates() -> dict[str, ChatTemplate]:
    fakes = {"chatml": CHATML, "llama": LLAMA3, "qwen": QWEN3}
    made = {
        f"{name}-{on}": chat_template(text, enable_thinking=on) for name, text in fakes.items() for on in (True, False)
    }
    return made | {f"family-{family.name}": chat_of(family) for family in FAMILIES}


async def trial(chat: ChatTemplate, seed: int) -> Trajectory:
    """A trial with long, cut and empty answers, special strings, and a history rewritten in its middle."""
    rng = random.Random(seed)

    def text(n: int) -> str:
        return "".join(rng.choice(TEXTS) for _ in range(n))

    answers = ["<think>\nwhy\n</think>\n\n{}", "a" * 90, "", *(text(3).replace("\ud83d", "") for _ in range(9))]
    sampler = PolicySampler(attempts=1)
    sampler.publish(ScriptedClient(answers, chat), 7)
    llm = TinkerLLM(sampler, chat, max_tokens=64, temperature=1.0, context_limit=20000, seed=seed)
    talk = Chat(llm)
    for number in range(6):
        await talk.chat(text(4) + str(number))
    talk._messages = talk._messages[:2]
    for number in range(4):
        await talk.chat(text(2) + str(number))
    return Trajectory("t", "s000000-p00-g00", tuple(llm.turns), 1.0, Outcome.COMPLETED)


@pytest.mark.parametrize("name", RECORDED)
async def test_terminus_2_datums_are_as_recorded(name: str) -> None:
    assert templates().keys() == RECORDED.keys()
    chat = templates()[name]
    trials = [await trial(chat, seed) for seed in range(3)]
    assert digest([datum for one in trials for datum in training_sequences(one, 0.5)]) == RECORDED[name]
