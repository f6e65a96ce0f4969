"""Messages in one form, whatever client sent them, and digests of conversations that two echoes have in common.

Values are those of a parsed JSON body: objects are dictionaries.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from harbortrainer.policy.tools import DEEPEST, Message, Tool, too_deep

_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_NOT_TEXT = "[not text, left out]"  # what the policy sees of an image, a sound or a file


class Malformed(ValueError):
    """A request that no client of the wire would send; its text names the field."""


def text_of(content: Any, between: str = "") -> str:
    """Return a message's content as text: a string, or parts of it. Raises Malformed."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Malformed("content: neither a text nor a list of parts")
    return between.join(map(_part, content))


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise Malformed("content: a part is no object")
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else _NOT_TEXT


def call(name: Any, arguments: Any) -> dict[str, Any]:
    """Return a call of an assistant message. `arguments`: an object, or its JSON as the client echoes it.

    Raises Malformed.
    """
    if not isinstance(name, str):
        raise Malformed("a call has no name")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = {"text": arguments.strip()}  # no JSON: a broken call stays readable
    value = arguments if isinstance(arguments, dict) else {"value": arguments}
    _check_depth(value)
    return {"type": "function", "function": {"name": name, "arguments": value}}


def tool(declared: Mapping[str, Any], schema: str = "parameters") -> dict[str, Any]:
    """Return the declaration of a tool. `schema`: the client's name for its parameters. Raises Malformed."""
    name, parameters = declared.get("name"), declared.get(schema) or {}
    if not isinstance(name, str) or not isinstance(parameters, dict):
        raise Malformed("tools: a function has no name, or parameters that are no object")
    if not isinstance(parameters.get("properties") or {}, dict):
        raise Malformed(f"tools: {name} has properties that are no object")
    needed = parameters.get("required") or []
    if not isinstance(needed, list) or not all(isinstance(one, str) for one in needed):
        raise Malformed(f"tools: {name} requires something else than a list of names")
    _check_depth(parameters)
    shown = {"name": name, "description": text_of(declared.get("description")), "parameters": parameters}
    return {"type": "function", "function": shown}


def arranged(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return instructions in front as one system message, later ones as messages of the user: what templates render."""
    first = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    system = "\n\n".join(message["content"] for message in messages[:first])
    rest = [message | {"role": "user"} if message["role"] == "system" else message for message in messages[first:]]
    return ([{"role": "system", "content": system}] if first else []) + rest


def digests(messages: Sequence[Message], tools: Sequence[Tool], known: Sequence[str] = ()) -> list[str]:
    """Return one for every prefix of the conversation: [0] of the tools alone, [k] of the first k messages with them.

    Equal for two echoes of an answer: its thoughts, outer blanks, ids and the spelling of arguments are left out, and
    what JavaScript loses of numbers.
    `known`: the first ones.
    """
    found = [*known] or [hashlib.blake2b(_json(tools), digest_size=16).hexdigest()]
    for message in messages[len(found) - 1 :]:
        found.append(digest_after(found[-1], message))
    return found


def digest_after(before: str, message: Message) -> str:
    """Return the digest of the conversation with digest `before` and this message behind it."""
    return hashlib.blake2b(before.encode() + _json(_normal(message)), digest_size=16).hexdigest()


def _normal(message: Message) -> list[Any]:
    role, text = message["role"], message["content"]
    if role != "assistant":
        return [role, text]
    functions = [one["function"] for one in message.get("tool_calls", ())]
    calls = [[one["name"], _as_javascript(one["arguments"])] for one in functions]
    return [role, _THOUGHT.sub("", text).strip(), *calls]


def _as_javascript(value: Any) -> Any:
    """The JSON value with numbers as programs in JavaScript write them again: 10.0 is 10, long ones are rounded."""
    if isinstance(value, dict):
        return {key: _as_javascript(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(map(_as_javascript, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    try:
        number = float(value)
    except OverflowError:  # Infinity there, which JSON has as null
        return None
    return int(number) if number.is_integer() else number


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _check_depth(value: dict[str, Any]) -> None:
    if too_deep(value):
        raise Malformed(f"objects within objects, more than {DEEPEST} deep")
