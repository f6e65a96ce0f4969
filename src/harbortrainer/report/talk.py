"""A conversation with a user and tools, read from the `conversation.json` that a venue left: who said what."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FILE = "conversation.json"
SYSTEM, TOOLS, AGENT, RESULT, USER, USER_RESULT = "system", "tools", "agent", "result", "user", "the user's tool"


def talk(folder: Path) -> list[dict[str, Any]]:
    """Messages with role and text, of agent and user also `calls`; results name their tool. [] = no readable file.

    System text and tools come first; the last message is the user's that ended the conversation, if one did.
    """
    try:
        value = json.loads((folder / FILE).read_bytes())
        return [*_opening(value), *_spoken(value.get("shown") or value["messages"])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _opening(value: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if system := value.get("system"):
        yield {"role": SYSTEM, "text": str(system)}
    if tools := value.get("tools"):
        yield {"role": TOOLS, "text": "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)}


def _spoken(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    names: dict[str, str] = {}  # of tools, by the call's id
    for message in messages:
        text, calls = str(message.get("content") or ""), message.get("tool_calls") or []
        names |= {str(call.get("id")): str(call["name"]) for call in calls}
        if message["role"] == "tool":
            role = USER_RESULT if message.get("requestor") == "user" else RESULT
            failed = "failed" if message.get("error") else ""
            about = " ".join(filter(None, (names.get(str(message.get("id"))), failed)))
            yield {"role": role, "text": text} | ({"about": about} if about else {})
            continue
        role = AGENT if message["role"] == "assistant" else USER
        shown = [f"{call['name']} {json.dumps(call.get('arguments'), ensure_ascii=False)}" for call in calls]
        yield {"role": role, "text": text} | ({"calls": shown} if shown else {})
