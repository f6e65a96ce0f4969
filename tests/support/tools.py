"""Tools of a shop, and chats whose templates know tools, or are served by the Hermes form."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.conversation import Conversation
from harbortrainer.policy.sampler import PolicySampler
from tests.support.fakes import ScriptedClient
from tests.support.families import LLAMA_PLAIN, LLAMA_TOOLS, QWEN, QWEN_3_5, QWEN_CODER, QWEN_TOOLS, TEKKEN, chat_of

NATIVE = (QWEN_TOOLS, LLAMA_TOOLS, QWEN_CODER, QWEN_3_5)


def tool(name: str, *arguments: str, about: str = "") -> dict[str, Any]:
    """The schema of a tool that requires these strings."""
    properties = {argument: {"type": "string", "title": argument} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": about or name, "parameters": parameters}}


TOOLS = [tool("find_order", "id", about="The order's état."), tool("cancel_order", "id", "reason"), tool("think")]


def chats(thinking: bool = False) -> dict[str, ChatTemplate]:
    """Templates that render tools, and the Hermes form over three that do not."""
    native = {family.name: chat_of(family, enable_thinking=thinking) for family in NATIVE}
    hermes = {f"hermes {family.name}": chat_of(family, tool_format="hermes") for family in (QWEN, LLAMA_PLAIN, TEKKEN)}
    return native | hermes


def call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}


def talk(
    chat: ChatTemplate, answers: Any, tools: Sequence[dict[str, Any]] = TOOLS, **limits: Any
) -> tuple[Conversation, ScriptedClient]:
    """A conversation whose policy answers in the order of `answers`."""
    sampler = PolicySampler(attempts=1)
    sampler.publish(client := ScriptedClient(answers, chat), 3)
    limits = {"max_tokens": 500, "temperature": 1.0, "context_limit": 20000} | limits
    return Conversation(sampler, chat, tools=tools, **limits), client


def written(chat: ChatTemplate, name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the template's form has it."""
    form = chat.call_form
    if form.xml:
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
        given = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
        return f"{form.opening}\n<function={name}>\n{given}</function>\n{form.closing}"
    text = json.dumps({"name": name, form.arguments: arguments}, ensure_ascii=False)
    return f"{form.opening}\n{text}\n{form.closing}" if form.opening else text
