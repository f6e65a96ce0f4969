"""Terminus-2's datums have the bytes that they had before the conversation was split from Harbor's LLM interface."""

import hashlib
import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from harbor.llms.chat import Chat

from harbortrainer.learning.datums import training_sequences
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.policy.tinker_llm import TinkerLLM
from tests.support.fakes import CHATML, LLAMA3, QWEN3, ScriptedClient, chat_template
from tests.support.families import FAMILIES, chat_of

RECORDED = {
    "chatml-False": "c7a0fff39ef12195",
    "chatml-True": "c7a0fff39ef12195",
    "family-gemma": "9411d7f8fc613821",
    "family-llama3": "949b041ff2ba5c70",
    "family-mistral": "48f3fd7477c0c24d",
    "family-qwen3": "25c12163e57f50ef",
    "llama-False": "c4cea885ab5a478a",
    "llama-True": "c4cea885ab5a478a",
    "qwen-False": "66806936a14e88c3",
    "qwen-True": "c7a0fff39ef12195",
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


def digest(trials: Sequence[Trajectory]) -> str:
    whole = hashlib.sha256()
    for one in trials:
        for sequence in training_sequences(one, 0.5):
            for values in (sequence.tokens_T, sequence.logprobs_T, sequence.advantages_T, sequence.mask_T):
                whole.update(np.ascontiguousarray(values).tobytes())
    return whole.hexdigest()[:16]


@pytest.mark.parametrize("name", RECORDED)
async def test_terminus_2_datums_are_as_recorded(name: str) -> None:
    assert templates().keys() == RECORDED.keys()
    chat = templates()[name]
    assert digest([await trial(chat, seed) for seed in range(3)]) == RECORDED[name]
