"""The APIs as OpenAI's and Anthropic's own clients see them: the same answer is read back, streamed and not."""

import importlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from harbortrainer.policy.api import service
from harbortrainer.policy.api.normal import Malformed
from harbortrainer.policy.api.wires import anthropic as messages_wire
from harbortrainer.policy.api.wires import chat as chat_wire
from harbortrainer.policy.api.wires import responses as responses_wire
from tests.support.tools import TOOLS
from tests.support.wire_parts import Served, served

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


def sdk(name: str) -> Any:
    """A client's package: thousands of modules, which every process that collects this file would import."""
    return importlib.import_module(name)


class Chat:
    """One conversation through one client; `ask` sends it whole, `reply` appends the answer and what follows."""

    def __init__(self, trial: Served, stream: bool) -> None:
        self.stream = stream
        self.history: list[Any] = [{"role": "user", "content": "q"}]
        self.client = sdk("openai").AsyncOpenAI(api_key=trial.key, base_url=trial.url + "/v1", max_retries=0)

    async def ask(self) -> Read:
        tools: Any = TOOLS
        messages = [{"role": "system", "content": "s"}, *self.history]
        if self.stream:
            async with self.client.chat.completions.stream(
                model="m", messages=messages, tools=tools, stream_options={"include_usage": True}
            ) as events:
                try:
                    answer: Any = await events.get_final_completion()
                except sdk("openai").LengthFinishReasonError as cut:
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
        self.anthropic = sdk("anthropic").AsyncAnthropic(api_key=trial.key, base_url=trial.url, max_retries=0)

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
        with pytest.raises((sdk("openai").BadRequestError, sdk("anthropic").BadRequestError)) as refused:
            await talk.ask()
        assert "This model's maximum context length is 200000 tokens. However, " in str(refused.value)
        assert "context_length_exceeded" in str(refused.value.body)
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert trial.exchange.over == "max_turns" and trial.exchange.stats["wire_refused_400"] == 1


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_stream_gives_signs_of_life_and_later_errors_as_events(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PING_SEC", 0.01)
    async with served(lambda request: None) as trial:
        path, body = BODIES[client]
        async with (
            httpx.AsyncClient(base_url=trial.url, headers={"x-api-key": trial.key}) as plain,
            plain.stream("POST", path, json=body | {"stream": True}) as answer,
        ):
            lines = answer.aiter_lines()
            assert answer.status_code == 200 and "ping" in await anext(lines)
            trial.exchange.end("timeout")
            rest = "\n".join([line async for line in lines])
        assert "context_length_exceeded" in rest or "maximum context length" in rest
        assert trial.exchange.stats["wire_refused_400"] == 1


ASKED = [{"role": "user", "content": "q"}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": ASKED, "model": "m"}),
    "responses": ("/v1/responses", {"input": "q", "model": "m"}),
    "anthropic": ("/v1/messages", {"messages": ASKED, "model": "m", "max_tokens": 5}),
}


@pytest.fixture
async def plain() -> AsyncIterator[tuple[httpx.AsyncClient, Served]]:
    async with served(["x"]) as trial:
        headers = {"authorization": f"Bearer {trial.key}"}
        async with httpx.AsyncClient(base_url=trial.url, headers=headers) as client:
            yield client, trial


async def test_tokens_are_counted_as_they_would_be_sampled(plain: tuple[httpx.AsyncClient, Served]) -> None:
    client, trial = plain
    counted = await client.post("/v1/messages/count_tokens", json=BODIES["anthropic"][1])
    answered = await client.post(*BODIES["anthropic"][:1], json=BODIES["anthropic"][1])
    assert (
        counted.json()["input_tokens"]
        == answered.json()["usage"]["input_tokens"]
        == len(trial.client.requests[0].prompt_T)
    )
    assert len(trial.exchange.turns) == 1
    longer = {"messages": [*ASKED, {"role": "assistant", "content": "x"}, *ASKED]}
    more = (await client.post("/v1/messages/count_tokens", json=longer)).json()["input_tokens"]
    assert more > counted.json()["input_tokens"]


async def test_parameters_of_sampling_are_the_runs(plain: tuple[httpx.AsyncClient, Served]) -> None:
    client, trial = plain
    path, body = BODIES["chat"]
    asked = body | {"temperature": 0.1, "tool_choice": "required", "max_tokens": 7, "top_p": None}
    assert (await client.post(path, json=asked)).json()["model"] == "m"
    assert (trial.client.requests[0].temperature, trial.client.requests[0].max_tokens) == (1.0, 7)


async def test_a_name_that_is_no_text_is_given_back(plain: tuple[httpx.AsyncClient, Served]) -> None:
    client, _ = plain
    path, body = BODIES["chat"]
    answer = await client.post(path, content=json.dumps(body | {"model": "\ud83d"}))
    assert answer.status_code == 200 and answer.json()["model"] == "\ud83d"


async def test_models_and_unknown_paths(plain: tuple[httpx.AsyncClient, Served]) -> None:
    client, trial = plain
    assert [one["id"] for one in (await client.get("/v1/models")).json()["data"]] == ["policy"]
    for method, path in [("PUT", "/v1/responses"), ("POST", "/v1/embeddings"), ("GET", "/"), ("PUT", "/v1/models")]:
        answer = await client.request(method, path)
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "unknown_url"
    assert trial.exchange.stats["wire_refused_404"] == 4
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    answer = await client.get("/v1/responses", headers=headers)  # codex tries one first, and only this ends its tries
    assert answer.status_code == 426 and answer.json()["error"]["code"] == "upgrade_required"


SCHEMA = {"name": "\ud83d", "parameters": {"required": 5}}
BROKEN: list[tuple[str, Any]] = [
    ("chat", b"{"),
    ("chat", b"[" * 100_000),
    ("chat", []),
    ("chat", {}),
    ("chat", {"messages": []}),
    ("chat", {"messages": [{"role": "robot", "content": "x"}]}),
    ("chat", {"messages": [{"role": "user", "content": 5}]}),
    ("chat", {"messages": ASKED, "n": 2}),
    ("chat", {"messages": ASKED, "max_tokens": "many"}),
    ("chat", {"messages": ASKED, "tools": [{"type": "function", "function": SCHEMA}]}),
    ("chat", {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 5, "arguments": ""}}]}]}),
    ("responses", {"input": [{"type": "function_call", "name": "f", "arguments": "[" * 5000 + "]" * 5000}]}),
    ("responses", {"input": 5}),
    ("responses", {"input": [{"type": "wish"}]}),
    ("responses", {"input": "q", "previous_response_id": "resp_1"}),
    ("anthropic", {"messages": [{"role": "user", "content": [5]}]}),
    ("anthropic", {"messages": [{"role": "tool", "content": "x"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("client", "body"), BROKEN)
async def test_a_body_of_another_shape_is_refused(
    client: str, body: Any, plain: tuple[httpx.AsyncClient, Served]
) -> None:
    http, trial = plain
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await http.post(BODIES[client][0], content=raw)
    if "function_call" in str(body):  # arguments that are no JSON are text: the conversation is answered
        assert answer.status_code == 200
        return
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_request"
    assert (await http.post(*BODIES[client][:1], json=BODIES[client][1])).status_code == 200
    assert trial.exchange.over == "" and trial.exchange.fault is None


def test_claudes_own_lines_and_orders_are_read() -> None:
    """The billing line is left out, a system message in the middle is the user's, results come before text."""
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2"},
        {"type": "text", "text": "You are."},
    ]
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
    told = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "h", "signature": "s"}, use]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "c"}, {"type": "tool_result", "tool_use_id": "t1", "content": "r"}],
        },
        {"role": "system", "content": "reminder"},
    ]
    server_tool = {"type": "web_search_20250305", "name": "web_search"}
    asked = messages_wire.read({"system": system, "messages": told, "tools": [server_tool], "max_tokens": 9})
    assert [(one["role"], one["content"]) for one in asked.messages] == [
        ("system", "You are."), ("user", "a\n\nb"), ("assistant", ""), ("tool", "r"), ("user", "c"),
        ("user", "reminder"),
    ]  # fmt: skip
    assert asked.messages[2]["tool_calls"][0]["function"] == {"name": "Bash", "arguments": {"command": "ls"}}
    assert (asked.tools, asked.max_tokens, asked.stream) == ([], 9, False)


def test_codexs_items_are_read() -> None:
    given = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d1"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}, {"type": "input_image"}]},
        {"type": "reasoning", "id": "rs", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look."}]},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call", "name": "g", "arguments": "no json", "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "r1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "r2"}]},
    ]
    tools = [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": None}]
    asked = responses_wire.read({"instructions": "i", "input": given, "tools": tools})
    assert [(one["role"], one["content"]) for one in asked.messages] == [
        ("system", "i\n\nd1"), ("user", "q[not text, left out]"), ("assistant", "Look."), ("tool", "r1"),
        ("tool", "r2"),
    ]  # fmt: skip
    calls = [one["function"]["arguments"] for one in asked.messages[2]["tool_calls"]]
    assert calls == [{}, {"text": "no json"}] and [one["function"]["name"] for one in asked.tools] == ["f"]


def test_objects_within_objects_have_a_limit() -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(Malformed, match="deep"):
        chat_wire.read(
            {"messages": ASKED, "tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}]}
        )


@pytest.mark.parametrize("properties", [[1], "x", 5])
def test_a_tool_whose_properties_are_no_object_is_refused(properties: Any) -> None:
    declared = {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}
    with pytest.raises(Malformed, match="f has properties that are no object"):
        chat_wire.read({"messages": ASKED, "tools": [declared]})
