"""OpenAI's chat completions."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from harbortrainer.model_api.normal import Malformed, arranged, call, text_of, tool
from harbortrainer.model_api.reply import Reply
from harbortrainer.model_api.wire import Ask, Head, Wire, ask

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def read(body: Mapping[str, Any]) -> Ask:
    """Raises Malformed."""
    declared = [tool(one["function"]) for one in body.get("tools") or () if one.get("type") == "function"]
    messages = arranged([_message(message) for message in body["messages"]])
    return ask(body, messages, declared, "max_completion_tokens", "max_tokens")


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    if (role := _ROLES.get(message["role"])) is None:
        raise Malformed(f"messages: no role {message['role']!r}")
    read: dict[str, Any] = {"role": role, "content": text_of(message.get("content"))}
    if role == "assistant" and (calls := message.get("tool_calls")):
        functions = [one["function"] for one in calls]
        read["tool_calls"] = [call(one["name"], one["arguments"]) for one in functions]
    return read


def whole(head: Head, reply: Reply) -> dict[str, Any]:
    choice = {"index": 0, "message": _said(reply), "finish_reason": _finish(reply), "logprobs": None}
    return _base(head, "chat.completion") | {"choices": [choice], "usage": _usage(reply)}


def stream(head: Head, reply: Reply, asked: Ask) -> Iterator[str]:
    def chunk(choices: list[dict[str, Any]], **more: Any) -> str:
        return _data(_base(head, "chat.completion.chunk") | {"choices": choices} | more)

    def delta(said: dict[str, Any], finish: str | None = None) -> str:
        return chunk([{"index": 0, "delta": said, "finish_reason": finish, "logprobs": None}])

    said = _said(reply)
    calls = said.pop("tool_calls", [])
    yield delta({"role": "assistant", "content": ""})
    if reply.thinking:
        yield delta({"reasoning_content": reply.thinking})
    if reply.text:
        yield delta({"content": reply.text})
    for index, one in enumerate(calls):
        yield delta({"tool_calls": [{"index": index, **one}]})
    yield delta({}, _finish(reply))
    if asked.usage:
        yield chunk([], usage=_usage(reply))
    yield "data: [DONE]\n\n"


def _base(head: Head, kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-" + head.id, "object": kind, "created": head.created, "model": head.model}


def _said(reply: Reply) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.thinking:
        said["reasoning_content"] = reply.thinking
    if reply.calls:
        functions = [(one.id, {"name": one.name, "arguments": one.arguments}) for one in reply.calls]
        said["tool_calls"] = [{"id": id, "type": "function", "function": function} for id, function in functions]
    return said


def _finish(reply: Reply) -> str:
    return "length" if reply.truncated else "tool_calls" if reply.calls else "stop"


def _usage(reply: Reply) -> dict[str, int]:
    total = reply.prompt_tokens + reply.sampled_tokens
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.sampled_tokens, "total_tokens": total}


def _data(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


WIRE = Wire("/v1/chat/completions", read, whole, stream, _data)
