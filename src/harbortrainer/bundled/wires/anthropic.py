"""Anthropic's messages."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from harbortrainer.model_api.normal import Malformed, arranged, call, text_of, tool
from harbortrainer.model_api.reply import Reply
from harbortrainer.model_api.wire import Ask, Head, Wire, ask, event

BILLING = "x-anthropic-billing-header"  # begins a system block that changes with each version of the client


def read(body: Mapping[str, Any]) -> Ask:
    """Raises Malformed."""
    system = body.get("system") or []
    blocks = [{"text": system}] if isinstance(system, str) else system
    texts = [block["text"] for block in blocks if not block["text"].startswith(BILLING)]
    messages = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
    for message in body["messages"]:
        messages += _messages(message["role"], message["content"])
    tools = [one for one in body.get("tools") or () if "input_schema" in one]  # the others run at Anthropic
    declared = [tool(one, "input_schema") for one in tools]
    return ask(body, arranged(messages), declared, "max_tokens")


def _messages(role: str, content: Any) -> list[dict[str, Any]]:
    """One message with its blocks: results of tools come first, each as a message of its own."""
    if role not in ("user", "assistant", "system"):
        raise Malformed(f"messages: no role {role!r}")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    kinds = [(block["type"], block) for block in blocks]
    results = [{"role": "tool", "content": text_of(one.get("content"))} for kind, one in kinds if kind == "tool_result"]
    calls = [call(one["name"], one["input"]) for kind, one in kinds if kind == "tool_use"]
    beside = ("tool_result", "tool_use", "thinking", "redacted_thinking")
    texts = [one for kind, one in kinds if kind not in beside]
    said: dict[str, Any] = {"role": role, "content": text_of(texts, "\n\n")}
    if calls:
        said["tool_calls"] = calls
    return [*results, said] if role == "assistant" or texts or not results else results


def whole(head: Head, reply: Reply) -> dict[str, Any]:
    stop = "max_tokens" if reply.truncated else "tool_use" if reply.calls else "end_turn"
    said = {"content": _blocks(reply), "stop_reason": stop, "stop_sequence": None}
    usage = {"input_tokens": reply.prompt_tokens, "output_tokens": reply.sampled_tokens}
    return {"id": "msg_" + head.id, "type": "message", "role": "assistant", "model": head.model, "usage": usage} | said


def stream(head: Head, reply: Reply, asked: Ask) -> Iterator[str]:
    said = whole(head, reply)
    begun = said | {"content": [], "stop_reason": None, "usage": said["usage"] | {"output_tokens": 0}}
    yield event("message_start", message=begun)
    for index, block in enumerate(said["content"]):
        if block["type"] == "text":
            empty, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            arguments = json.dumps(block["input"], ensure_ascii=False)
            empty, delta = block | {"input": {}}, {"type": "input_json_delta", "partial_json": arguments}
        yield event("content_block_start", index=index, content_block=empty)
        yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    end = {"stop_reason": said["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=end, usage=said["usage"])
    yield event("message_stop")


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    """Without thoughts: they need a signature of Anthropic's. An empty answer has no block, as Anthropic's own."""
    texts = [{"type": "text", "text": reply.text}] if reply.text.strip() else []
    uses = [{"type": "tool_use", "id": c.id, "name": c.name, "input": json.loads(c.arguments)} for c in reply.calls]
    return [*texts, *uses]


def _failure(error: dict[str, Any]) -> str:
    return event("error", error=error["error"])


PATH = "/v1/messages"
WIRE = Wire(PATH, read, whole, stream, failure=_failure, ping=event("ping"), counting=f"{PATH}/count_tokens")
