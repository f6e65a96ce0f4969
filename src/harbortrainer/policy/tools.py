"""Tool calls in the text of an answer: the form that a chat template writes them in, and their parsing.

An answer is parsed by its text alone and is never rendered again: `json.dumps` would replace what was sampled.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harbortrainer.policy.special_strings import CALL_TAGS, RESULT_TAGS

Message = Mapping[str, Any]
Tool = Mapping[str, Any]  # {"type": "function", "function": {"name", "description", "parameters": JSON schema}}

ARGUMENTS, PARAMETERS = "arguments", "parameters"
QUOTED = "arguments as a string"
OTHER_KEY = "another key for the arguments"
BARE = "no tags around the call"
_XML_CALL = re.compile(r"\s*<function=([^<>\n]*)>(.*)</function>\s*", re.DOTALL)
_XML_ARGUMENT = re.compile(r"\s*<parameter=([^<>\n]*)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
_PYTHONS = {"true": "true", "false": "false", "none": "null", "null": "null"}  # templates write True and None
_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)
DEEPEST = 64  # objects and lists within one another: copies, templates and digests walk through them
_TRIED_BY_ERROR = (ValueError, RecursionError)  # JSONDecodeError, lone surrogates, numbers of 5,000 digits; brackets


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a tool takes: the names of required arguments, the JSON schemas of all."""

    required: tuple[str, ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)


Signatures = Mapping[str, Signature]  # of the declared tools, by name
_UNKNOWN = Signature()


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form of calls: `opening`, one JSON object, `closing`. Without an opening the object is the answer.

    `xml`: between the tags stand `<function=NAME>`, a `<parameter=KEY>` for each argument, and their ends.
    """

    opening: str = CALL_TAGS[0]
    closing: str = CALL_TAGS[1]
    arguments: str = ARGUMENTS  # the object's key for them
    several: bool = True  # whether the template renders an answer with two calls
    xml: bool = False

    @property
    def words(self) -> str:
        """The form in words, without its tags: a message to the policy must not hold control strings."""
        if self.xml:
            argument = "for each argument <parameter=KEY>VALUE</parameter>"
            return f"Write <function=NAME>, {argument}, then </function>, between the tags of a tool call."
        where = "between the tags of a tool call" if self.opening else "and nothing else"
        return f'Write {{"name": NAME, "{self.arguments}": OBJECT}} {where}.'


@dataclass(frozen=True, slots=True)
class Parsed:
    """A read answer. `text`: the answer without its calls; `failure`: what was wrong, "" = nothing; then there are no
    calls.

    `fallbacks`: one of QUOTED, OTHER_KEY, BARE for each call that needed it.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    failure: str = ""
    fallbacks: tuple[str, ...] = ()


def written(call: ToolCall, form: CallForm) -> str:
    """Return a call as a policy writes it in this form: the text that `parse` reads."""
    if form.xml:
        texts = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in call.arguments.items()}
        parameters = [f"<parameter={key}>\n{text}\n</parameter>" for key, text in texts.items()]
        inner = "\n".join([f"<function={call.name}>", *parameters, "</function>"])
    else:
        inner = json.dumps({"name": call.name, form.arguments: call.arguments}, ensure_ascii=False)
    return f"{form.opening}\n{inner}\n{form.closing}" if form.opening else inner


def transcribed(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return (who, text) of a finished conversation's message (`run/conversations.py`): calls stand below its text."""
    calls = [f"{one['name']} {json.dumps(one['arguments'], ensure_ascii=False)}" for one in message.get("calls") or ()]
    failed = "failed: " if message.get("error") else ""
    who = "the user's tool" if message.get("to") == "user" else message["role"]
    return who, failed + "\n".join(filter(None, [message["content"], *calls]))


class _NoCall(ValueError):
    """An opened call that cannot be executed. Its text completes "call 2 of 3: "."""


def signatures(tools: Sequence[Tool]) -> dict[str, Signature]:
    """Return what the declared tools take, by name."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return {
        name: Signature(tuple(schema.get("required") or ()), schema.get("properties") or {})
        for name, schema in schemas.items()
    }


def parse(text: str, form: CallForm, known: Signatures) -> Parsed:
    """Return the calls in an answer's text. `known`: of `signatures`. Raises nothing.

    A block that is opened and cannot be read makes the whole answer a failure: then no call is executed.
    """
    try:
        blocks = list(_blocks(text, form))
    except _NoCall as error:
        return Parsed(text, failure=_failure(str(error), form))
    if not blocks:
        return _bare(text, form, known)
    if len(blocks) > 1 and not form.several:
        return Parsed(text, failure=_failure("more than one call in an answer", form))
    calls, fallbacks = [], []
    for number, (_, body) in enumerate(blocks, 1):
        try:
            call, used = _call(body, form, known)
        except _NoCall as error:
            return Parsed(text, failure=_failure(f"call {number} of {len(blocks)}: {error}", form))
        calls.append(call)
        fallbacks += used
    return Parsed(text[: blocks[0][0]].strip(), tuple(calls), fallbacks=tuple(fallbacks))


def parse_sent(text: str, sent: Sequence[tuple[Any, Any]], known: Signatures) -> Parsed:
    """Get the calls of an answer whose server has found them: (name, arguments as JSON text) each. Raises nothing."""
    calls = []
    for number, (name, arguments) in enumerate(sent, 1):
        try:
            body = json.dumps({"name": name, ARGUMENTS: arguments or None})
            calls.append(_call(body, CallForm(), known)[0])
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


def _bare(text: str, form: CallForm, known: Signatures) -> Parsed:
    """A lone object (or function of the XML form), fenced or not, that names a declared tool is a call; else text."""
    body = text.strip()
    fenced = _FENCED.fullmatch(body)
    try:
        call, used = _call(fenced[1] if fenced else body, form, known)
    except _NoCall:
        return Parsed(text)
    return Parsed("", (call,), fallbacks=(*used, BARE)) if call.name in known else Parsed(text)


def _call(body: str, form: CallForm, known: Signatures) -> tuple[ToolCall, list[str]]:
    """The call of one block, and the fallbacks that read it. Raises _NoCall."""
    if form.xml:
        return _xml_call(body, known), []
    found = _object(body)
    name = found.get("name")
    if not isinstance(name, str) or not name:
        raise _NoCall("it has no name")
    used: list[str] = []
    other = PARAMETERS if form.arguments == ARGUMENTS else ARGUMENTS
    key = other if form.arguments not in found and other in found else form.arguments
    given = found.get(key)
    if given is None:
        if known.get(name, _UNKNOWN).required:
            raise _NoCall(f"it has no {form.arguments}, and {name} requires {', '.join(known[name].required)}")
        return ToolCall(name, {}), used
    if key == other:
        used.append(OTHER_KEY)
    if isinstance(given, str):
        given = _object(given)
        used.append(QUOTED)
    if not isinstance(given, dict):
        raise _NoCall(f"its {form.arguments} are no object")
    return ToolCall(name, given), used


def _xml_call(body: str, known: Signatures) -> ToolCall:
    """The call of one block in the XML form. Raises _NoCall."""
    found = _XML_CALL.fullmatch(body)
    if found is None:
        raise _NoCall("it is no <function=NAME> with its end")
    if not (name := found[1].strip()):
        raise _NoCall("it has no name")
    signature, arguments, at = known.get(name, _UNKNOWN), {}, 0
    while one := _XML_ARGUMENT.match(found[2], at):
        key, at = one[1].strip(), one.end()
        if key in arguments:
            raise _NoCall(f"it has the argument {key} twice")
        arguments[key] = _xml_value(key, one[2], signature.properties.get(key))
    if found[2][at:].strip():
        raise _NoCall("it has text that is no <parameter=KEY> with its end")
    if not arguments and signature.required:
        raise _NoCall(f"it has no arguments, and {name} requires {', '.join(signature.required)}")
    return ToolCall(name, arguments)


def _xml_value(key: str, text: str, schema: Any) -> Any:
    """An argument by its schema: text where that allows a string, else a JSON value. Raises _NoCall."""
    types = _types(schema)
    written = _PYTHONS.get(text.strip().lower(), text)
    if "string" in types:
        return None if "null" in types and written == "null" else text
    try:
        return _value(written)
    except _NoCall as error:
        if types:
            raise _NoCall(f"its argument {key} is {error}") from None
        return text


def _types(schema: Any) -> set[str]:
    """The JSON types that a schema names, also within anyOf and oneOf; none = it does not say, or refers to another."""
    if not isinstance(schema, Mapping):
        return {"string"}  # an argument that is not declared
    if isinstance(given := schema.get("type"), str):
        return {given}
    # any JSON may stand here: the policy can declare tools too
    lists = [one for one in map(schema.get, ("anyOf", "oneOf")) if isinstance(one, list)]
    named = {one for one in given if isinstance(one, str)} if isinstance(given, list) else set()
    return named.union(*(_types(inner) for one in lists for inner in one))


def _object(text: str) -> dict[str, Any]:
    """A JSON object. Raises _NoCall."""
    if not isinstance(value := _value(text), dict):
        raise _NoCall("it is no JSON object")
    return value


def _value(text: str) -> Any:
    """A JSON value, strictly: no NaN, no line break in a string, nothing behind it, not deep. Raises _NoCall."""
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no text
    except _TRIED_BY_ERROR as error:
        reason = getattr(error, "msg", "") or type(error).__name__
        raise _NoCall(f"invalid JSON ({reason})") from None
    if too_deep(value):
        raise _NoCall(f"invalid JSON (more than {DEEPEST} lists and objects within one another)")
    return value


def too_deep(value: Any, levels: int = DEEPEST) -> bool:
    """Return whether a JSON value has more levels of lists and objects."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not levels or any(too_deep(one, levels - 1) for one in inner)


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
    """Get the same conversation for a template without tools, in the Hermes form: declarations in the system message,
    calls as text, neighbouring results as one user message."""
    arranged: list[dict[str, Any]] = []
    before = ""
    for message in messages:
        if message["role"] == "tool":
            content = f"{RESULT_TAGS[0]}\n{message['content']}\n{RESULT_TAGS[1]}"
            if before == "tool":
                arranged[-1]["content"] += "\n" + content
            else:
                arranged.append({"role": "user", "content": content})
        elif calls := message.get("tool_calls"):
            parts = [message["content"], *(_written(call["function"]) for call in calls)]
            arranged.append({"role": message["role"], "content": "\n".join(filter(None, parts))})
        else:
            arranged.append(dict(message))
        before = message["role"]
    if not tools:
        return arranged
    text = _INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if arranged and arranged[0]["role"] == "system":
        return [{**arranged[0], "content": f"{arranged[0]['content']}\n\n{text}"}, *arranged[1:]]
    return [{"role": "system", "content": text}, *arranged]


def _written(function: Mapping[str, Any]) -> str:
    call = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"{CALL_TAGS[0]}\n{call}\n{CALL_TAGS[1]}"
