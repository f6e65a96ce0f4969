"""What the APIs answer to any client: bodies of every shape, streams that wait, refusals."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from harbortrainer.bundled.wires import anthropic as messages_wire
from harbortrainer.bundled.wires import chat as chat_wire
from harbortrainer.bundled.wires import responses as responses_wire
from harbortrainer.model_api.normal import Malformed
from tests.support.wire_parts import Served, served


@pytest.mark.parametrize("client", ["chat", "responses", "anthropic"])
async def test_a_stream_gives_signs_of_life_and_later_errors_as_events(client: str) -> None:
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
