"""Tool calls through `serve` with OpenAI's own client and a scripted policy; other clients: test_api_clients.py."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.serve.arguments import ServeArgs
from harbortrainer.serve.serve import _opened
from tests.support.fakes import ScriptedClient
from tests.support.families import QWEN_TOOLS, chat_of
from tests.support.later import Later

openai = Later("openai")

KEY = "a-key-of-this-test"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 40}}\n</tool_call>'
SCRIPT = [f"I add them.\n{CALL}", "It is 42."]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
ASK = "What is 2 + 40?"


@asynccontextmanager
async def served(*answers: str) -> AsyncIterator[tuple[str, ScriptedClient]]:
    """Address of the service, and what was sampled."""
    template = chat_of(QWEN_TOOLS)
    client, sampler = ScriptedClient(answers or SCRIPT, template), PolicySampler(attempts=1)
    sampler.publish(client, 0)
    args = ServeArgs(model_name="m", port=0, max_tokens=300, context_limit=8000)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with _opened(args, sampler, template, listener, KEY) as url:
            yield url, client


def grows(client: ScriptedClient) -> bool:
    """Whether each prompt begins with the one before and what was sampled after it: the ids are kept."""
    prompts = [request.prompt_T for request in client.requests]
    return len(prompts) == 2 and prompts[1][: len(prompts[0])] == prompts[0]


async def test_calls_are_read_and_the_ids_before_them_are_kept() -> None:
    tools: Any = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "user", "content": ASK}]
    async with served() as (url, client), openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as api:
        choice = (await api.chat.completions.create(model="policy", messages=messages, tools=tools)).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
        (call,) = choice.message.tool_calls
        assert call.type == "function" and call.function.name == "add"
        assert json.loads(call.function.arguments) == {"a": 2, "b": 40}
        assert (choice.message.content or "").strip() == "I add them."
        sent = {"id": call.id, "type": "function", "function": call.function.model_dump(include={"name", "arguments"})}
        messages += [
            {"role": "assistant", "content": choice.message.content, "tool_calls": [sent]},
            {"role": "tool", "tool_call_id": call.id, "content": "42"},
        ]
        last = (await api.chat.completions.create(model="policy", messages=messages, tools=tools)).choices[0]
        assert (last.finish_reason, last.message.content, last.message.tool_calls) == ("stop", "It is 42.", None)
        assert grows(client)


async def test_a_call_that_cannot_be_read_is_text() -> None:
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
    async with served('<tool_call>\n{"name": ') as (url, _), openai.AsyncOpenAI(base_url=url, api_key=KEY) as api:
        chat = await api.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": ASK}], tools=tools
        )
        assert chat.choices[0].message.tool_calls is None and chat.choices[0].message.content
