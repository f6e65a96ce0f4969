"""OpenAI's responses."""

from collections.abc import Iterator, Mapping
from typing import Any

from harbortrainer.model_api.normal import Malformed, arranged, call, text_of, tool
from harbortrainer.model_api.reply import Reply
from harbortrainer.model_api.wire import Ask, Head, Wire, ask, event

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_BESIDE = ("reasoning", "item_reference", "compaction")  # items that no template renders


def read(body: Mapping[str, Any]) -> Ask:
    """Raises Malformed. Nothing is kept between requests, so `previous_response_id` is refused."""
    if body.get("previous_response_id"):
        raise Malformed("previous_response_id: answers are not kept here; send the whole conversation")
    given = body["input"]
    instructions = body.get("instructions")
    messages = [{"role": "system", "content": text_of(instructions)}] if instructions else []
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        _add(messages, item)
    declared = [tool(one) for one in body.get("tools") or () if one.get("type") == "function"]
    return ask(body, arranged(messages), declared, "max_output_tokens")


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Append an item; calls belong to the assistant's message before them."""
    kind = item.get("type", "message")
    if kind == "message" and (role := _ROLES.get(item["role"])) is not None:
        messages.append({"role": role, "content": text_of(item["content"])})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(call(item["name"], item["arguments"]))
    elif kind == "function_call_output":
        messages.append({"role": "tool", "content": text_of(item["output"])})
    elif kind not in _BESIDE:
        raise Malformed(f"input: no item {kind!r} with role {item.get('role')!r}")


def whole(head: Head, reply: Reply) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if reply.thinking:
        summary = [{"type": "summary_text", "text": reply.thinking}]
        output.append({"type": "reasoning", "id": "rs_" + head.id, "summary": summary})
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        base = {"type": "message", "id": "msg_" + head.id, "role": "assistant", "status": "completed"}
        output.append(base | {"content": [part]})
    for one in reply.calls:
        base = {"type": "function_call", "id": "fc_" + one.id, "call_id": one.id, "status": "completed"}
        output.append(base | {"name": one.name, "arguments": one.arguments})
    return _response(head, reply) | {"output": output}


def _response(head: Head, reply: Reply) -> dict[str, Any]:
    incomplete = {"reason": "max_output_tokens"} if reply.truncated else None
    usage = {
        "input_tokens": reply.prompt_tokens,
        "output_tokens": reply.sampled_tokens,
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    head_fields = {"id": "resp_" + head.id, "object": "response", "created_at": head.created, "model": head.model}
    state = {"status": "incomplete" if incomplete else "completed", "incomplete_details": incomplete, "error": None}
    fixed = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return head_fields | state | fixed | {"usage": usage}


def stream(head: Head, reply: Reply, asked: Ask) -> Iterator[str]:
    """Yield the whole lifecycle: some clients keep only the deltas, some only the finished items."""
    said = whole(head, reply)
    begun = said | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    parts: Events = [("response.created", {"response": begun}), ("response.in_progress", {"response": begun})]
    for index, item in enumerate(said["output"]):
        parts += _ITEMS[item["type"]](item, {"output_index": index, "item_id": item["id"]})
        parts.append(("response.output_item.done", {"output_index": index, "item": item}))
    parts.append((f"response.{said['status']}", {"response": said}))
    for number, (name, fields) in enumerate(parts):
        yield event(name, sequence_number=number, **fields)


Events = list[tuple[str, dict[str, Any]]]


def _added(item: dict[str, Any], at: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "response.output_item.added", {"output_index": at["output_index"], "item": item}


def _message(item: dict[str, Any], at: dict[str, Any]) -> Events:
    part, at = item["content"][0], at | {"content_index": 0}
    return [
        _added(item | {"content": [], "status": "in_progress"}, at),
        ("response.content_part.added", at | {"part": part | {"text": ""}}),
        ("response.output_text.delta", at | {"delta": part["text"], "logprobs": []}),
        ("response.output_text.done", at | {"text": part["text"], "logprobs": []}),
        ("response.content_part.done", at | {"part": part}),
    ]


def _function_call(item: dict[str, Any], at: dict[str, Any]) -> Events:
    arguments = item["arguments"]
    return [
        _added(item | {"arguments": "", "status": "in_progress"}, at),
        ("response.function_call_arguments.delta", at | {"delta": arguments}),
        ("response.function_call_arguments.done", at | {"arguments": arguments, "name": item["name"]}),
    ]


def _reasoning(item: dict[str, Any], at: dict[str, Any]) -> Events:
    part, at = item["summary"][0], at | {"summary_index": 0}
    return [
        _added(item | {"summary": []}, at),
        ("response.reasoning_summary_part.added", at | {"part": part | {"text": ""}}),
        ("response.reasoning_summary_text.delta", at | {"delta": part["text"]}),
        ("response.reasoning_summary_text.done", at | {"text": part["text"]}),
        ("response.reasoning_summary_part.done", at | {"part": part}),
    ]


_ITEMS = {"message": _message, "function_call": _function_call, "reasoning": _reasoning}


def _failure(error: dict[str, Any]) -> str:
    return event("error", code=error["error"]["code"], message=error["error"]["message"], param=None, sequence_number=0)


WIRE = Wire("/v1/responses", read, whole, stream, _failure)
