"""A policy behind an endpoint: its messages, the ids that are kept, and whatever the endpoint does wrong."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harbor.llms.base import ContextLengthExceededError
from harbor.llms.chat import Chat

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.evaluation.policies import find_subject
from harbortrainer.model_api.exchange import MATCHED, Exchange
from harbortrainer.model_api.prompts import Prompts
from harbortrainer.model_file import model_of
from harbortrainer.other_models.remote_policy import RemotePolicy, Spent, sendable, until_spent
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.conversation import Conversation, result, user
from harbortrainer.policy.sampler import PolicySampler, SamplingError
from harbortrainer.policy.tinker_llm import TinkerLLM
from harbortrainer.stopping import run_until
from tests.support.chat_server import CUT, DRIPS, HANG, ChatServer, Reply, calls, chat_server, says
from tests.support.fakes import QWEN3, chat_template
from tests.support.families import QWEN_CODER, QWEN_TOOLS, Family, chat_of

AT = {"type": "string", "description": "where"}
SCHEMA = {"type": "object", "properties": {"at": AT}, "required": ["at"]}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}
PRICES = {"prompt": 2.0, "sampled": 8.0}
FAULTS: list[Reply] = [HANG, (429, "slow down"), CUT, (200, "<html>"), (200, {"choices": []}), (503, "busy"), DRIPS]
FAULTS += [says(""), (200, [1])]


def remote(server: ChatServer, folder: Path, template: ChatTemplate, **fields: Any) -> RemotePolicy:
    about = {"url": server.url, "model": "m", "answer_sec": 60.0, "usd_per_million": PRICES} | fields
    policy = model_of("policy", json.dumps(about))
    assert policy is not None
    return RemotePolicy(policy, template, Spent(folder / "requests.jsonl", PRICES))


def llm_of(policy: RemotePolicy, **options: Any) -> tuple[TinkerLLM, PolicySampler]:
    sampler = PolicySampler(request_timeout_sec=options.pop("timeout", 30.0))
    sampler.publish(policy, 0)
    settings: dict[str, Any] = {"max_tokens": 64, "temperature": 0.7, "context_limit": 4000}
    own = sampler.of_trial("task")
    return TinkerLLM(own, policy.template, **settings | options), sampler


@asynccontextmanager
async def asked(
    answer: Any, folder: Path, template: ChatTemplate, fields: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[TinkerLLM, RemotePolicy, ChatServer]]:
    """A trial's LLM in front of an endpoint. `fields`: of the policy; `options`: of the LLM."""
    async with chat_server(answer) as server:
        policy = remote(server, folder, template, **(fields or {}))
        llm, sampler = llm_of(policy, **options)
        yield llm, policy, server
        await sampler.abandon()
        await policy.aclose()


async def test_the_endpoint_gets_messages_and_the_trial_keeps_ids_of_the_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEACHER_KEY", "secret")
    template = chat_template(QWEN3)
    answers, given = [says("one", prompt_tokens=10, completion_tokens=5), says("two")], {"top_p": 0.5, "seed": None}
    fields = {"key": "TEACHER_KEY", "fields": given}
    async with asked(answers, tmp_path, template, fields, seed=3) as (llm, policy, server):
        chat = Chat(llm)
        assert [(await chat.chat(text)).content for text in ("a", "b")] == ["one", "two"]
    first, second = server.requests
    assert first["messages"] == [{"role": "user", "content": "a"}]
    assert [m["content"] for m in second["messages"]] == ["a", "one", "b"]
    assert (first["model"], first["max_tokens"], first["temperature"], first["top_p"]) == ("m", 64, 0.7, 0.5)
    assert "seed" not in first and server.headers[0]["authorization"] == "Bearer secret"
    assert [turn.completion_tokens_T for turn in llm.turns] == [tuple(template.completion(t)) for t in ("one", "two")]
    assert llm.segments[0].tokens_T[: len(llm.turns[0].new_tokens_T)] == template.first_prompt([user("a")])
    assert read_lines(tmp_path / "requests.jsonl")[0] == {"how": "", "prompt_tokens": 10, "sampled_tokens": 5}
    assert policy.spent.usd > (10 * 2 + 5 * 8) / 1e6 and not policy.spent.failed
    again = Spent(tmp_path / "requests.jsonl", PRICES)
    assert (again.requests, again.usd) == (2, pytest.approx(policy.spent.usd)), (
        "a continued evaluation goes on counting"
    )


async def test_faults_of_the_endpoint_are_tried_again_cost_and_take_no_time_of_the_trial(tmp_path: Path) -> None:
    turn = itertools.count()
    plan = [reply for fault in FAULTS for reply in (fault, says("fine", prompt_tokens=7, completion_tokens=3))]
    fields = {"answer_sec": 0.5}
    async with asked(lambda _: plan[next(turn)], tmp_path, chat_template(QWEN3), fields) as (llm, _, _):
        chat, began = Chat(llm), asyncio.get_running_loop().time()
        for _ in FAULTS:
            assert (await chat.chat("x")).content == "fine"
        spent = asyncio.get_running_loop().time() - began
    assert 2 * 0.5 < llm.lost() < spent, "a hang and an answer that drips, at least"
    records = read_lines(tmp_path / "requests.jsonl")
    assert [bool(record["how"]) for record in records] == [True, False] * len(FAULTS)
    costly = {record["how"]: record["prompt_tokens"] for record in records if record["how"]}
    assert costly["no answer in time"] > 0, "it may have been computed"
    assert all(tokens == 0 for how, tokens in costly.items() if how.startswith("status"))


async def test_while_it_is_silent_the_clock_stands_still(tmp_path: Path) -> None:
    came = asyncio.Event()

    def silent(_: dict[str, Any]) -> Reply:
        came.set()
        return HANG

    async with asked(silent, tmp_path, chat_template(QWEN3), timeout=60.0) as (llm, _, _):
        asking = asyncio.create_task(Chat(llm).chat("x"))
        await came.wait()
        await asyncio.sleep(0.05)
        assert llm.lost() >= 0.05
        asking.cancel()
    assert [record["how"] for record in read_lines(tmp_path / "requests.jsonl")] == ["stopped"]


FULL = (400, '{"error": {"code": "context_length_exceeded"}}')  # ends the trial as here


@pytest.mark.parametrize(
    ("reply", "error"), [((401, "no"), SamplingError), (HANG, SamplingError), (FULL, ContextLengthExceededError)]
)
async def test_what_does_not_pass_is_a_fault(tmp_path: Path, reply: Reply, error: type[Exception]) -> None:
    async with asked([reply], tmp_path, chat_template(QWEN3), {"answer_sec": 0.15}, timeout=0.4) as (llm, _, _):
        with pytest.raises(error):
            await Chat(llm).chat("x")


@pytest.mark.parametrize("family", [QWEN_TOOLS, QWEN_CODER], ids=lambda family: family.name)
async def test_its_calls_are_kept_in_the_form_of_the_template(tmp_path: Path, family: Family) -> None:
    template = chat_of(family)
    async with chat_server([calls(("look", {"at": "a b"}), text="first"), says("done")]) as server:
        policy = remote(server, tmp_path, template)
        sampler = PolicySampler()
        sampler.publish(policy, 0)
        own = sampler.of_trial("task")
        talk = Conversation(own, template, max_tokens=64, temperature=1.0, context_limit=4000, tools=[TOOL])
        answer = await talk.ask([user("go")])
        assert (await talk.ask([result("seen")])).text == "done"
        await sampler.abandon()
        await policy.aclose()
    assert [(call.name, call.arguments) for call in answer.calls] == [("look", {"at": "a b"})]
    assert answer.text == "first" and not answer.fallbacks
    sent = server.requests[1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    (call,) = sent[1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"at": "a b"} and sent[2]["tool_call_id"] == call["id"]
    assert server.requests[0]["tools"] == [TOOL]


async def test_an_agent_in_a_container_asks_it_through_the_runs_api(tmp_path: Path) -> None:
    template = chat_of(QWEN_TOOLS)
    async with chat_server([calls(("look", {"at": "x"})), says("done")]) as server:
        policy = remote(server, tmp_path, template)
        sampler = PolicySampler()
        sampler.publish(policy, 0)
        own = sampler.of_trial("task")
        talk = Conversation(own, template, max_tokens=64, temperature=1.0, context_limit=4000)
        exchange = Exchange(talk, Prompts(template))
        asked = [{"role": "system", "content": "s"}, user("go")]
        first = await exchange.say(asked, [TOOL])
        called = {"type": "function", "function": {"name": "look", "arguments": {"at": "x"}}}
        asked += [{"role": "assistant", "content": "", "tool_calls": [called]}, result("seen")]
        assert (await exchange.say(asked, [TOOL])).text == "done"
        await sampler.abandon()
        await policy.aclose()
    assert [(call.name, json.loads(call.arguments)) for call in first.calls] == [("look", {"at": "x"})]
    assert exchange.stats[MATCHED] == 1, "the ids of the first answer go on"
    assert [message["role"] for message in server.requests[1]["messages"]] == ["system", "user", "assistant", "tool"]


async def test_thoughts_are_kept_on_request(tmp_path: Path) -> None:
    template = chat_template(QWEN3, enable_thinking=True)
    for thoughts in (True, False):
        reply = says("text")
        reply[1]["choices"][0]["message"]["reasoning_content"] = "hm"  # pyright: ignore[reportOptionalSubscript]
        async with asked([reply], tmp_path, template, {"thoughts": thoughts}) as (llm, _, _):
            said = await Chat(llm).chat("x")
        assert (said.content, said.reasoning_content) == ("text", "hm" if thoughts else None)


async def test_a_cap_ends_the_work(tmp_path: Path) -> None:
    costly = says("x", prompt_tokens=400_000, completion_tokens=50_000)
    async with asked([costly], tmp_path, chat_template(QWEN3)) as (llm, policy, _):

        async def work() -> None:
            chat = Chat(llm)
            while True:
                await chat.chat("x")

        with pytest.raises(UserError, match=r"max_usd=2: 2 requests, .* 2.4000 USD; raise it and continue with: again"):
            await run_until(work(), until_spent(policy.spent, 2.0, "again"))


async def test_a_check_passes_over_faults_and_names_what_stays(tmp_path: Path) -> None:
    async with chat_server([(429, "x"), CUT, says("yes")]) as server:
        policy = remote(server, tmp_path, chat_template(QWEN3))
        await policy.check()
        await policy.aclose()
    async with chat_server([(404, "no such model")]) as server:
        policy = remote(server, tmp_path, chat_template(QWEN3))
        with pytest.raises(UserError, match=r"policy: \S+: status 404: no such model; check url"):
            await policy.check()
        await policy.aclose()
    assert len(server.requests) == 1


def test_results_without_a_call_are_text_of_the_user() -> None:
    assert sendable([result("x")]) == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"model": "m"}, "m: give the url of"),
        ({"url": "host/v1", "model": "m"}, "url=host/v1: must start with http"),
        ({"url": "http://h/v1", "model": "m", "keys": 1}, "keys: no such field; one of url, model"),
        ({"url": "http://h/v1", "model": "m", "fields": {"api_key": "x"}}, "fields.api_key: holds a secret"),
        ({"url": "http://h/v1", "model": "m", "usd_per_million": {"prompt": -1}}, "usd_per_million"),
        ({"url": "http://h/v1", "model": "m", "answer_sec": "1"}, "answer_sec=1: has another type"),
    ],
)
def test_a_file_that_describes_no_endpoint_is_refused(tmp_path: Path, value: dict[str, Any], words: str) -> None:
    (file := tmp_path / "p.json").write_text(json.dumps(value))
    with pytest.raises(UserError, match=f"^policy(={file})?: .*{words}"):
        find_subject("policy", str(file))
