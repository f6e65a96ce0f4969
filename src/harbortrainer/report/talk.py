"""A conversation with a user and tools, as a venue left it in a trial's folder: who said what."""

import json
from pathlib import Path
from typing import Any

from harbortrainer.run.conversations import own_messages, own_tools

ROLES = {"assistant": "agent", "tool": "result"}  # others are shown as they are


def talk(folder: Path) -> list[dict[str, Any]]:
    """Messages with role and text, of agent and user also `calls`; results name their tool. [] = no readable file.

    System text and tools come first; the last message is the user's that ended the conversation, if one did.
    """
    shown: list[dict[str, Any]] = []
    names: list[str] = []  # of the tools whose results come next
    for message in own_messages(folder):
        one = {"role": ROLES.get(message["role"], message["role"]), "text": message["content"]}
        if message["role"] == "tool":
            about = [*names[:1], *(["failed"] if message.get("error") else [])]
            names = names[1:]
            one |= {"about": " ".join(about)} if about else {}
            one |= {"role": "the user's tool"} if message.get("to") == "user" else {}
        elif calls := message.get("calls"):
            names = [call["name"] for call in calls]
            one["calls"] = [f"{call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}" for call in calls]
        shown.append(one)
    if shown and (tools := own_tools(folder)):
        text = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        shown.insert(1, {"role": "tools", "text": text})
    return shown
