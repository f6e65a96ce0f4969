"""Finds by rendering how a chat template writes tool calls and their results. Names of models decide nothing."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from harbortrainer.errors import UserError
from harbortrainer.policy.tools import ARGUMENTS, PARAMETERS, CallForm, Message, Tool, ToolCall, parse, signatures

MARKER = "\u2063harbortrainer-answer\u2063"  # placeholder for the assistant's answer; no template alters it
_NAME, _KEY, _VALUE, _RESULTS = "probe_name", "probe_key", "probe value", ("first result", "second result")
_SCHEMA = {"type": "object", "properties": {_KEY: {"type": "string"}}, "required": [_KEY]}
PROBE = {"type": "function", "function": {"name": _NAME, "description": "", "parameters": _SCHEMA}}
_XML = f"<function={_NAME}>"
_ASKED = {"role": "user", "content": "x"}
_ANSWERED = {"role": "assistant", "content": MARKER}

Render = Callable[[Sequence[Message], Sequence[Tool]], str]  # a conversation, up to the header of the next answer
Read = Callable[[str], str]  # rendered text as the parser of answers sees it


class _NoForm(Exception):
    """What the chat template does, so that tools cannot be used with it."""


def find_form(render: Render, read: Read, model: str) -> CallForm:
    """Get form of the calls of `model`'s own template. Raises UserError: it has none, or one that is not known here."""
    try:
        return _found_form(render, read)
    except _NoForm as error:
        raise UserError(
            f"model_name={model}: the chat template {error}; set tool_format=hermes to declare tools in the system "
            "message, or use a model whose template renders tools"
        ) from None


def call_form_of_hermes(render: Render, model: str) -> CallForm:
    """Return the Hermes form, once `model`'s template shows the system message and results. Raises UserError."""
    try:
        if _NAME not in render([{"role": "system", "content": "s"}, _ASKED], [PROBE]):
            raise _NoForm("does not show a system message")
        _check_results(render)
    except _NoForm as error:
        raise UserError(
            f"model_name={model}: the chat template {error}, which tool_format=hermes needs; use another model"
        ) from None
    return CallForm()


def _found_form(render: Render, read: Read) -> CallForm:
    if _NAME not in render([_ASKED], [PROBE]):
        raise _NoForm("does not show the declared tools")
    _check_results(render)
    written = read(_written(render, 1))
    xml = _XML in written
    opening, key, closing = _around_xml(written) if xml else _around_object(written)
    try:
        both = read(_written(render, 2))
    except (UserError, _NoForm):  # the template refuses two calls in one answer
        both = ""
    several = bool(opening) and both.count(opening) == 2
    form = CallForm(opening, closing, key, several, xml)
    if parse(written, form, signatures([PROBE])).calls != (ToolCall(_NAME, {_KEY: _VALUE}),):
        raise _unknown(written)
    return form


def _check_results(render: Render) -> None:
    """Raises _NoForm when results of tools do not appear after an answer."""
    results = [{"role": "tool", "content": text} for text in _RESULTS]
    after = render([_ASKED, _ANSWERED, *results], [PROBE]).partition(MARKER)[2]
    if not all(text in after for text in _RESULTS):
        raise _NoForm("does not show what tools return")


def takes_greeting(render: Render, tools: Sequence[Tool]) -> bool:
    """Return whether an answer before the first user message is rendered as an answer."""
    system = {"role": "system", "content": "s"}
    try:
        greeted = render([system, _ANSWERED, _ASKED], tools).partition(MARKER)[0]
        answer = render([system, _ASKED, _ANSWERED, _ASKED], tools).partition(MARKER)[0]
        asked = render([system, _ASKED, {"role": "assistant", "content": "y"}, {**_ANSWERED, "role": "user"}], tools)
    except UserError:
        return False
    return _common_end(greeted, answer) > _common_end(greeted, asked.partition(MARKER)[0])


def _common_end(one: str, other: str) -> int:
    least = min(len(one), len(other))
    return next((n for n in range(least) if one[-1 - n] != other[-1 - n]), least)


def _written(render: Render, calls: int) -> str:
    """What the template writes for an answer of so many calls, between its header and what follows an answer."""
    function = {"name": _NAME, "arguments": {_KEY: _VALUE}}
    call = {"id": "000000000", "type": "function", "function": function}
    results = [{"role": "tool", "content": text} for text in _RESULTS[:calls]]
    head, _, tail = render([_ASKED, _ANSWERED, *results], [PROBE]).partition(MARKER)
    calling = {"role": "assistant", "content": "", "tool_calls": [call] * calls}
    text = render([_ASKED, calling, *results], [PROBE])
    if not (text.startswith(head) and text.endswith(tail)):
        raise _NoForm("writes a turn with a tool call unlike other answers")
    return text[len(head) : len(text) - len(tail)]


def _around_object(call: str) -> tuple[str, str, str]:
    """(text before the call's object, its key for the arguments, text behind it)."""
    start = call.find("{")
    try:
        found, length = json.JSONDecoder().raw_decode(call[max(start, 0) :])
    except ValueError:
        found, length = {}, 0
    key = next((key for key in (ARGUMENTS, PARAMETERS) if isinstance(found, dict) and key in found), "")
    opening, closing = call[: max(start, 0)].strip(), call[start + length :].strip()
    if not key or found != {"name": _NAME, key: {_KEY: _VALUE}} or bool(opening) != bool(closing):
        raise _unknown(call)
    return opening, key, closing


def _around_xml(call: str) -> tuple[str, str, str]:
    """The same of a call in the XML form."""
    opening, _, rest = call.partition(_XML)
    closing = rest.rpartition("</function>")[2]
    if not (opening.strip() and closing.strip()):
        raise _unknown(call)
    return opening.strip(), ARGUMENTS, closing.strip()


def _unknown(call: str) -> _NoForm:
    return _NoForm(f"writes tool calls in a form that is not read here ({' '.join(call.split())[:80]})")


def json_arguments(call: Any) -> Any:
    """Return a call of a message with its arguments as an object: some programs write them as a string."""
    function = call["function"]
    if not isinstance(function["arguments"], str):
        return call
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
