"""Token-in/token-out: prefixes are exact, nothing sampled is lost, faults are told apart."""

from typing import Any

import pytest
from harbor.llms.base import ContextLengthExceededError
from harbor.llms.chat import Chat

from harbortrainer.learning.trajectory import Turn
from harbortrainer.policy.conversation import SMALLEST_ANSWER
from harbortrainer.policy.sampler import PolicySampler, SamplingError
from harbortrainer.policy.tinker_llm import TinkerLLM, live_llm, registered
from tests.support.fakes import CHATML, LLAMA3, QWEN3, ScriptedClient, chat_template, response


def make(answers: Any, template: str = QWEN3, **options: Any) -> tuple[TinkerLLM, ScriptedClient]:
    thinking = options.pop("enable_thinking", False)
    chat = chat_template(template, enable_thinking=thinking)
    client = ScriptedClient(answers, chat)
    sampler = PolicySampler(attempts=1, powers_of_two=options.pop("powers_of_two", False))
    sampler.publish(client, 3)
    settings = {"max_tokens": 64, "temperature": 0.7, "context_limit": 4000} | options
    return TinkerLLM(sampler, chat, **settings), client


def rebuilt_prompts(turns: list[Turn]) -> list[list[int]]:
    """Every turn's prompt as the training code rebuilds it from the turns."""
    seen: dict[int, list[int]] = {}
    prompts = []
    for turn in turns:
        prompt = [*seen.get(turn.segment, []), *turn.new_tokens_T]
        prompts.append(prompt)
        seen[turn.segment] = [*prompt, *turn.completion_tokens_T]
    return prompts


@pytest.mark.parametrize("template", [QWEN3, CHATML, LLAMA3])
@pytest.mark.parametrize("thinking", [False, True])
async def test_each_prompt_is_the_last_one_with_what_was_sampled(template: str, thinking: bool) -> None:
    said = ["<think>\nlong\n</think>\n\nfirst", "  second with a tail  ", "", "<think>cut off", "x" * 100, "last"]
    llm, client = make(said, template, enable_thinking=thinking)
    chat = Chat(llm)
    for i in range(len(said)):
        await chat.chat(f"screen {i}\n\n")
    assert rebuilt_prompts(llm.turns) == [request.prompt_T for request in client.requests]
    assert {turn.segment for turn in llm.turns} == {0}
    for before, after in zip(client.requests, client.requests[1:], strict=False):
        assert after.prompt_T[: len(before.prompt_T)] == before.prompt_T
    text = llm.template.tokenizer.decode(client.requests[-1].prompt_T)
    end = "<|eot_id|>" if template == LLAMA3 else "<|im_end|>"
    assert text.count(end) == 2 * len(said) - 1  # one after every message, none twice


async def test_truncated_answer_is_kept_and_closed_by_the_next_prompt() -> None:
    llm, _ = make(["y" * 200, "short"])
    chat = Chat(llm)
    assert (await chat.chat("a")).content == "y" * 64
    await chat.chat("b")
    assert [turn.truncated for turn in llm.turns] == [True, False]
    assert len(llm.turns[0].completion_tokens_T) == len(llm.turns[0].logprobs_T) == 64
    assert llm.turns[1].new_tokens_T[0] == llm.template.turn_end


async def test_history_that_was_rewritten_opens_a_segment_and_the_old_one_can_go_on() -> None:
    llm, client = make(["one", "summary", "questions", "answers", "two"])
    chat = Chat(llm)
    await chat.chat("task")
    history = list(chat.messages)
    await llm.call("summarise", message_history=history)
    await llm.call("ask", message_history=[])
    more = [*history, {"role": "user", "content": "summarise"}, {"role": "assistant", "content": "summary"}]
    await llm.call("reply", message_history=more)
    chat._messages = [
        history[0],
        {"role": "user", "content": "ask"},
        {"role": "assistant", "content": "questions"},
    ]
    await chat.chat("go on")
    assert [turn.segment for turn in llm.turns] == [0, 0, 1, 0, 2]
    assert rebuilt_prompts(llm.turns) == [request.prompt_T for request in client.requests]


async def test_count_tokens_is_exact_for_open_and_for_rewritten_histories() -> None:
    llm, client = make(["one", "two"])
    chat = Chat(llm)
    assert llm.count_tokens([]) == 0
    await chat.chat("a")
    assert llm.count_tokens(chat.messages) == len(client.requests[0].prompt_T) + len(llm.turns[0].completion_tokens_T)
    assert llm.count_tokens([{"role": "user", "content": "new"}]) > 0


@pytest.mark.parametrize("powers_of_two", [True, False])
async def test_context_limit_cuts_answers_and_then_ends(powers_of_two: bool) -> None:
    llm, client = make(["z" * 500], context_limit=600, max_tokens=256, powers_of_two=powers_of_two)
    chat = Chat(llm)
    with pytest.raises(ContextLengthExceededError, match="context_limit is 600"):
        for _ in range(20):
            await chat.chat("q" * 50)
    sizes = [request.max_tokens for request in client.requests]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 256
    used = [len(request.prompt_T) + request.max_tokens for request in client.requests]
    if powers_of_two:
        assert all(size >= SMALLEST_ANSWER and size & (size - 1) == 0 for size in sizes) and max(used) <= 600
    else:
        assert used[-1] == 600, "the last answer has all the room that is left"
    assert llm.fault is None and len(llm.turns) == len(sizes)


@pytest.mark.parametrize("powers_of_two", [True, False])
async def test_the_smallest_answer_still_fits(powers_of_two: bool) -> None:
    llm, client = make(["z" * 500])
    await llm.call("q")
    used = len(client.requests[0].prompt_T)
    llm, client = make(["z" * 500], context_limit=used + SMALLEST_ANSWER, powers_of_two=powers_of_two)
    await llm.call("q")
    assert client.requests[0].max_tokens == SMALLEST_ANSWER
    llm, _ = make(["z" * 500], context_limit=used + SMALLEST_ANSWER - 1, powers_of_two=powers_of_two)
    with pytest.raises(ContextLengthExceededError):
        await llm.call("q")


async def test_response_carries_text_and_usage_but_no_ids() -> None:
    llm, _ = make(["hello"])
    answered = await llm.call("hi")
    assert answered.content == "hello" and answered.usage is not None and answered.usage.completion_tokens == 6
    assert answered.prompt_token_ids is answered.completion_token_ids is answered.logprobs is None
    assert llm.turns[0].weights_version == 3 and llm.turns[0].text == "hello"


async def test_nothing_sampled_is_an_empty_answer() -> None:
    llm, client = make(lambda request: response([]))
    chat = Chat(llm)
    assert (await chat.chat("a")).content == ""
    await chat.chat("b")
    assert llm.turns[0].completion_tokens_T == () and llm.turns[1].new_tokens_T[0] == llm.template.turn_end
    assert rebuilt_prompts(llm.turns) == [request.prompt_T for request in client.requests]


async def test_a_fault_is_remembered_so_that_nobody_can_swallow_it() -> None:
    llm, client = make(lambda request: response([1, 2], logprobs_T=[-0.1]))
    for _ in range(3):
        with pytest.raises(SamplingError, match="1 logprobs for 2 sampled tokens"):
            await llm.call("a")
    assert len(client.requests) == 1 and isinstance(llm.fault, SamplingError) and llm.turns == []


async def test_seeds_differ_by_turn_and_repeat_by_trial() -> None:
    drawn = []
    for _ in range(2):
        llm, client = make(["a"], seed=11)
        chat = Chat(llm)
        for _ in range(3):
            await chat.chat("x")
        drawn.append([request.seed for request in client.requests])
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 3 and max(drawn[0]) < 2**31
    llm, client = make(["a"])
    await llm.call("x")
    assert client.requests[0].seed is None and client.requests[0].temperature == 0.7


async def test_registry_gives_the_live_llm_and_forgets_it() -> None:
    llm, _ = make(["a"])
    with registered("t1", llm):
        assert live_llm("t1") is llm
        with pytest.raises(ValueError, match="already running"), registered("t1", llm):
            pass
    with pytest.raises(KeyError):
        live_llm("t1")
