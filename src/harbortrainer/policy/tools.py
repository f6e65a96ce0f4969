"""Tool calls in the text of an answer: the form that a chat template writes them in, and their parsing.

An answer is parsed by its text alone and is never rendered again: `json.dumps` would replace what was sampled.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harbortrainer.policy.special_strings import CALL_TAGS, RESULT_TAGS

Message = Mapping[str, Any]
Tool = Mapping[str, Any]  # {"type": "function", "function": {"name", "description", "parameters": JSON schema}}

ARGUMENTS, PARAMETERS = "arguments", "parameters"
QUOTED = "arguments as a string"
OTHER_KEY = "another key for the arguments"
BARE = "no tags around the call"
_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)
_TRIED_BY_ERROR = (ValueError, RecursionError)  # JSONDecodeError, lone surrogates, numbers of 5,000 digits; brackets


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallForm:
    """How calls are written: `opening`, one JSON object, `closing`. Without an opening the object is the answer."""

    opening: str = CALL_TAGS[0]
    closing: str = CALL_TAGS[1]
    arguments: str = ARGUMENTS  # the object's key for them
    several: bool = True  # whether the template renders an answer with two calls

    @property
    def words(self) -> str:
        """The form in words, without its tags: a message to the policy must not hold control strings."""
        where = "between the tags of a tool call" if self.opening else "and nothing else"
        return f'Write {{"name": NAME, "{self.arguments}": OBJECT}} {where}.'


@dataclass(frozen=True, slots=True)
class Parsed:
    """`text`: the answer without its calls; `failure`: what was wrong, "" = nothing; then there are no calls.

    `fallbacks`: one of QUOTED, OTHER_KEY, BARE for each call that needed it.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    failure: str = ""
    fallbacks: tuple[str, ...] = ()


class _NoCall(ValueError):
    """An opened call that cannot be executed. Its text completes "call 2 of 3: "."""


def required(tools: Sequence[Tool]) -> dict[str, tuple[str, ...]]:
    """The names of the declared tools, each with the arguments that its schema requires."""
    functions = [tool["function"] for tool in tools]
    return {f["name"]: tuple((f.get("parameters") or {}).get("required") or ()) for f in functions}


def parse(text: str, form: CallForm, needs: Mapping[str, Sequence[str]]) -> Parsed:
    """The calls in an answer's text. `needs`: of `required`. Raises nothing.

    A block that is opened and cannot be read makes the whole answer a failure: then no call is executed.
    """
    try:
        blocks = list(_blocks(text, form))
    except _NoCall as error:
        return Parsed(text, failure=_failure(str(error), form))
    if not blocks:
        return _bare(text, form, needs)
    if len(blocks) > 1 and not form.several:
        return Parsed(text, failure=_failure("more than one call in an answer", form))
    calls, fallbacks = [], []
    for number, (_, body) in enumerate(blocks, 1):
        try:
            call, used = _call(body, form, needs)
        except _NoCall as error:
            return Parsed(text, failure=_failure(f"call {number} of {len(blocks)}: {error}", form))
        calls.append(call)
        fallbacks += used
    return Parsed(text[: blocks[0][0]].strip(), tuple(calls), fallbacks=tuple(fallbacks))


def parse_sent(text: str, sent: Sequence[tuple[Any, Any]], needs: Mapping[str, Sequence[str]]) -> Parsed:
    """The calls of an answer whose server has found them: (name, arguments as JSON text) each. Raises nothing."""
    calls = []
    for number, (name, arguments) in enumerate(sent, 1):
        try:
            body = json.dumps({"name": name, ARGUMENTS: arguments or None})
            calls.append(_call(body, CallForm(), needs)[0])
        except _NoCall as error:
            return Parsed(text, failure=_failure(f"call {number} of {len(sent)}: {error}"))
    return Parsed(text, tuple(calls))


def _failure(reason: str, form: CallForm | None = None) -> str:
    how = f" {form.words}" if form is not None else ""
    return f"Error: the tool call could not be read: {reason}. No call was executed.{how}"


def _blocks(text: str, form: CallForm) -> Iterator[tuple[int, str]]:
    """(where it begins, what it holds) of each block. Raises _NoCall for one without its end."""
    if not form.opening:
        if text.lstrip().startswith("{"):
            yield 0, text
        return
    at = 0
    while (begin := text.find(form.opening, at)) >= 0:
        inside = begin + len(form.opening)
        end = text.find(form.closing, inside)
        if end < 0:
            raise _NoCall("the tag that ends it is missing")
        yield begin, text[inside:end]
        at = end + len(form.closing)


def _bare(text: str, form: CallForm, needs: Mapping[str, Sequence[str]]) -> Parsed:
    """A lone object, fenced or not, that names a declared tool is a call; everything else is text."""
    body = text.strip()
    fenced = _FENCED.fullmatch(body)
    try:
        call, used = _call(fenced[1] if fenced else body, form, needs)
    except _NoCall:
        return Parsed(text)
    return Parsed("", (call,), fallbacks=(*used, BARE)) if call.name in needs else Parsed(text)


def _call(body: str, form: CallForm, needs: Mapping[str, Sequence[str]]) -> tuple[ToolCall, list[str]]:
    """The call of one block, and the fallbacks that read it. Raises _NoCall."""
    found = _object(body)
    name = found.get("name")
    if not isinstance(name, str) or not name:
        raise _NoCall("it has no name")
    used: list[str] = []
    other = PARAMETERS if form.arguments == ARGUMENTS else ARGUMENTS
    key = other if form.arguments not in found and other in found else form.arguments
    given = found.get(key)
    if given is None:
        if needs.get(name):
            raise _NoCall(f"it has no {form.arguments}, and {name} requires {', '.join(needs[name])}")
        return ToolCall(name, {}), used
    if key == other:
        used.append(OTHER_KEY)
    if isinstance(given, str):
        given = _object(given)
        used.append(QUOTED)
    if not isinstance(given, dict):
        raise _NoCall(f"its {form.arguments} are no object")
    return ToolCall(name, given), used


def _object(text: str) -> dict[str, Any]:
    """A JSON object, strictly: no NaN, no line break in a string, nothing behind it. Raises _NoCall."""
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no text
    except _TRIED_BY_ERROR as error:
        reason = getattr(error, "msg", "") or type(error).__name__
        raise _NoCall(f"invalid JSON ({reason})") from None
    if not isinstance(value, dict):
        raise _NoCall("it is no JSON object")
    return value


def _no_number(name: str) -> float:
    raise ValueError(name)


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(digits)
    return number


_INTRODUCTION = """# Tools

You can call functions to do the work. These are their signatures, one JSON object a line, between <tools> and </tools>:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and its arguments between <tool_call> and </tool_call>:
<tool_call>
{{"name": NAME, "arguments": OBJECT}}
</tool_call>
An answer can have several calls. What they return comes between <tool_response> and </tool_response>."""


def hermes(messages: Sequence[Message], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The same conversation for a template without tools, in the Hermes form: declarations in the system message,
    calls as text, neighbouring results as one user message."""
    arranged: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            content = f"{RESULT_TAGS[0]}\n{message['content']}\n{RESULT_TAGS[1]}"
            arranged.append({"role": "user", "content": content, "result": True})
        elif calls := message.get("tool_calls"):
            parts = [message["content"], *(_written(call["function"]) for call in calls)]
            arranged.append({"role": message["role"], "content": "\n".join(filter(None, parts))})
        else:
            arranged.append(dict(message))
    arranged = _results_joined(arranged)
    if not tools:
        return arranged
    text = _INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if arranged and arranged[0]["role"] == "system":
        return [{**arranged[0], "content": f"{arranged[0]['content']}\n\n{text}"}, *arranged[1:]]
    return [{"role": "system", "content": text}, *arranged]


def _results_joined(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    joined: list[dict[str, Any]] = []
    last = False
    for message in messages:
        result = message.pop("result", False)
        if result and last:
            joined[-1]["content"] += "\n" + message["content"]
        else:
            joined.append(message)
        last = result
    return joined


def _written(function: Mapping[str, Any]) -> str:
    call = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"{CALL_TAGS[0]}\n{call}\n{CALL_TAGS[1]}"
