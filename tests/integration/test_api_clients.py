"""The APIs as OpenAI's and Anthropic's own clients see them: the same answer is read back, streamed and not."""

import json
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from tests.support.later import Later
from tests.support.tools import TOOLS
from tests.support.wire_parts import Served, served

anthropic, openai = Later("anthropic"), Later("openai")

FUNCTIONS = [one["function"] for one in TOOLS]
CALL = '<tool_call>\n{"name": "find_order", "arguments": {"id":  "\\u00e9"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "think"}\n</tool_call>'
SAID = {
    "text": ("It is done. \n", "It is done. \n", [], False),
    "one call": ("Look.\n" + CALL, "Look.", [("find_order", {"id": "é"})], False),
    "two calls": (CALL + "\n" + OTHER, "", [("find_order", {"id": "é"}), ("think", {})], False),
    "empty": ("", "", [], False),
    "truncated": ("a" * 900, "a" * 500, [], True),
    "thoughts": ("<think>\nwhy\n</think>\n\nYes.", "Yes.", [], False),
}
Read = tuple[str, list[tuple[str, Any]], bool, str]  # text, calls, truncated, thoughts


class Chat:
    """One conversation through one client; `ask` sends it whole, `reply` appends the answer and what follows."""

    def __init__(self, trial: Served, stream: bool) -> None:
        self.stream = stream
        self.history: list[Any] = [{"role": "user", "content": "q"}]
        self.client = openai.AsyncOpenAI(api_key=trial.key, base_url=trial.url + "/v1", max_retries=0)

    async def ask(self) -> Read:
        tools: Any = TOOLS
        messages = [{"role": "system", "content": "s"}, *self.history]
        if self.stream:
            async with self.client.chat.completions.stream(
                model="m", messages=messages, tools=tools, stream_options={"include_usage": True}
            ) as events:
                try:
                    answer: Any = await events.get_final_completion()
                except openai.LengthFinishReasonError as cut:
                    answer = cut.completion
        else:
            answer = await self.client.chat.completions.create(model="m", messages=messages, tools=tools)
        choice, self.used = answer.choices[0], answer.usage.completion_tokens
        self.said = choice.message
        calls = [(one.function.name, json.loads(one.function.arguments)) for one in self.said.tool_calls or ()]
        cut = choice.finish_reason == "length"
        assert cut or choice.finish_reason == ("tool_calls" if calls else "stop")
        return self.said.content, calls, cut, getattr(self.said, "reasoning_content", None) or ""

    def reply(self) -> None:
        self.history.append(self.said.model_dump(exclude_none=True, exclude={"parsed"}))
        for one in self.said.tool_calls or ():
            self.history.append({"role": "tool", "tool_call_id": one.id, "content": [{"type": "text", "text": "r"}]})
        self.history.append({"role": "user", "content": "on"})

    async def aclose(self) -> None:
        await self.client.close()


class Responses(Chat):
    async def ask(self) -> Read:
        tools: Any = [{"type": "function", "strict": False, **one} for one in FUNCTIONS]
        fields: dict[str, Any] = {"model": "m", "instructions": "s", "input": self.history, "tools": tools}
        if self.stream:
            async with self.client.responses.stream(**fields) as events:
                seen: list[Any] = [event async for event in events]
            answer, kinds = seen[-1].response, [event.type for event in seen]
            assert kinds[:2] == ["response.created", "response.in_progress"]
            assert kinds.count("response.output_item.done") == len(answer.output)
        else:
            answer = await self.client.responses.create(**fields)
        self.output, self.used = answer.output, answer.usage.output_tokens
        calls = [(one.name, json.loads(one.arguments)) for one in answer.output if one.type == "function_call"]
        thoughts = [one.summary[0].text for one in answer.output if one.type == "reasoning"]
        cut = answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
        assert cut or answer.status == "completed"
        return answer.output_text, calls, cut, "".join(thoughts)

    def reply(self) -> None:
        for one in self.output:
            self.history.append(one.model_dump(exclude_none=True, exclude={"parsed", "parsed_arguments", "status"}))
        for one in self.output:
            if one.type == "function_call":
                self.history.append({"type": "function_call_output", "call_id": one.call_id, "output": "r"})
        self.history.append({"role": "user", "content": "on"})


class Anthropic(Chat):
    def __init__(self, trial: Served, stream: bool) -> None:
        super().__init__(trial, stream)
        self.anthropic = anthropic.AsyncAnthropic(api_key=trial.key, base_url=trial.url, max_retries=0)

    async def ask(self) -> Read:
        tools = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in FUNCTIONS
        ]
        fields: dict[str, Any] = {"model": "m", "system": "s", "messages": self.history, "tools": tools}
        if self.stream:
            async with self.anthropic.messages.stream(max_tokens=9000, **fields) as events:
                answer = await events.get_final_message()
        else:
            answer = await self.anthropic.messages.create(max_tokens=9000, **fields)
        self.content, self.used = answer.content, answer.usage.output_tokens
        calls = [(one.name, one.input) for one in answer.content if one.type == "tool_use"]
        assert answer.stop_reason in ("max_tokens", "tool_use" if calls else "end_turn")
        text = "".join(one.text for one in answer.content if one.type == "text")
        return text, calls, answer.stop_reason == "max_tokens", ""

    def reply(self) -> None:
        said = [one.model_dump(exclude_none=True, exclude={"parsed_output"}) for one in self.content]
        uses = [one.id for one in self.content if one.type == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": "r"}]} for id in uses
        ]
        text = {"type": "text", "text": "on", "cache_control": {"type": "ephemeral"}}
        self.history += [{"role": "assistant", "content": said}, {"role": "user", "content": [*results, text]}]

    async def aclose(self) -> None:
        await self.anthropic.close()
        await super().aclose()


CLIENTS: dict[str, Callable[[Served, bool], Chat]] = {"chat": Chat, "responses": Responses, "anthropic": Anthropic}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("said", SAID)
async def test_the_clients_read_the_answer_and_their_echo_continues(client: str, stream: bool, said: str) -> None:
    text, shown, calls, truncated = SAID[said]
    async with served([text, "done"]) as trial, aclosing(CLIENTS[client](trial, stream)) as talk:
        thoughts = "why" if said == "thoughts" and client != "anthropic" else ""
        assert await talk.ask() == (shown, calls, truncated, thoughts)
        turn = trial.exchange.turns[0]
        assert talk.used == len(turn.completion_tokens_T) and turn.truncated == truncated
        talk.reply()
        assert (await talk.ask())[0] == "done"
        assert trial.exchange.stats["wire_segments"] == 1 and trial.exchange.stats["wire_matched"] == 1


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_clients_see_the_refusal_that_none_repeats(client: str, stream: bool) -> None:
    async with served(["done"], max_turns=1) as trial, aclosing(CLIENTS[client](trial, stream)) as talk:
        await talk.ask()
        talk.reply()
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as refused:
            await talk.ask()
        assert "This model's maximum context length is 200000 tokens. However, " in str(refused.value)
        assert "context_length_exceeded" in str(refused.value.body)
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert trial.exchange.over == "max_turns" and trial.exchange.stats["wire_refused_400"] == 1
