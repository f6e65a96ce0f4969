"""Calls in answers: what counts as one, as a failure, as text; nothing that a policy writes raises."""

import json
import random
from typing import Any

import pytest

from harbortrainer.policy.tools import BARE, OTHER_KEY, QUOTED, CallForm, Parsed, ToolCall, parse, signatures
from tests.support.tools import TOOLS

HERMES = CallForm()
LLAMA = CallForm("", "", "parameters", several=False)
KNOWN = signatures(TOOLS)
FIND = ToolCall("find_order", {"id": "1"})


def block(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


GOOD = '{"name": "find_order", "arguments": {"id": "1"}}'
CALLS: list[tuple[str, tuple[ToolCall, ...], tuple[str, ...]]] = [
    (block(GOOD), (FIND,), ()),
    ("I look it up.\n" + block(GOOD) + "\n", (FIND,), ()),
    (block(GOOD) + block('{"arguments": {}, "name": "think", "id": 3}'), (FIND, ToolCall("think", {})), ()),
    (block('{"name": "new", "arguments": {"a": [1, null, 1.5]}}'), (ToolCall("new", {"a": [1, None, 1.5]}),), ()),
    (block('{"name": "think"}'), (ToolCall("think", {}),), ()),
    (block('{"name": "think", "arguments": null}'), (ToolCall("think", {}),), ()),
    (block('{"name": "find_order", "arguments": "{\\"id\\": \\"1\\"}"}'), (FIND,), (QUOTED,)),
    (block('{"name": "find_order", "parameters": {"id": "1"}}'), (FIND,), (OTHER_KEY,)),
    (block('{"name": "find_order", "parameters": "{\\"id\\": \\"1\\"}"}'), (FIND,), (OTHER_KEY, QUOTED)),
    (GOOD, (FIND,), (BARE,)),
    (f"```json\n{GOOD}\n```", (FIND,), (BARE,)),
    (f"```\n{GOOD.replace('arguments', 'parameters')}\n```\n", (FIND,), (OTHER_KEY, BARE)),
    (block(GOOD.replace("1", "<tool_response>")), (ToolCall("find_order", {"id": "<tool_response>"}),), ()),
]  # fmt: skip


@pytest.mark.parametrize(("text", "calls", "fallbacks"), CALLS)
def test_calls_that_are_read(text: str, calls: tuple[ToolCall, ...], fallbacks: tuple[str, ...]) -> None:
    parsed = parse(text, HERMES, KNOWN)
    assert (parsed.calls, parsed.fallbacks, parsed.failure) == (calls, fallbacks, "")
    assert "tool_call" not in parsed.text


DEEP = '{"name": "find_order", "arguments": ' + '{"id": ' * 100_000
FAILURES = {
    "<tool_call>\n" + GOOD: "the tag that ends it is missing",
    block(GOOD) + "<tool_call>": "the tag that ends it is missing",
    block(""): "invalid JSON",
    block('{"name": "find_order", "arguments": {"id": "1"}'): "invalid JSON",
    block(GOOD + GOOD): "invalid JSON (Extra data)",
    block(f"[{GOOD}]"): "no JSON object",
    block(GOOD.replace("1", "a\nb")): "invalid JSON (Invalid control character at)",
    block(GOOD.replace("1", "</tool_call>")): "invalid JSON",
    block(GOOD.replace('"1"', "NaN")): "invalid JSON",
    block(GOOD.replace('"1"', "1e999")): "invalid JSON",
    block(GOOD.replace('"1"', "9" * 5000)): "invalid JSON",
    block(GOOD.replace("1", "\\ud800")): "invalid JSON",
    block(DEEP): "invalid JSON",
    block(GOOD.replace('"1"', "[" * 500 + "]" * 500)): "more than 64 lists and objects within one another",
    block(GOOD.replace('{"id": "1"}', '["1"]')): "its arguments are no object",
    block(GOOD.replace('{"id": "1"}', '"[1]"')): "no JSON object",
    block('{"name": "find_order"}'): "it has no arguments, and find_order requires id",
    block('{"arguments": {"id": "1"}}'): "it has no name",
    block('{"name": 7, "arguments": {}}'): "it has no name",
    block('{"type": "function", "function": ' + GOOD + "}"): "it has no name",
    block(GOOD) + block("{"): "call 2 of 2: invalid JSON",
}


@pytest.mark.parametrize("text", FAILURES, ids=range(len(FAILURES)))
def test_malformed_calls_are_failures_that_say_what_was_wrong(text: str) -> None:
    parsed = parse(text, HERMES, KNOWN)
    assert parsed.calls == () and FAILURES[text] in parsed.failure and "\n" not in parsed.failure
    assert parsed.failure.startswith("Error: the tool call could not be read: ")
    assert "<tool" not in parsed.failure and len(parsed.failure) < 400, "no control strings in what is shown"


TEXTS = (
    "", "It is done.", "the tag </tool_call> closes a call", "<think>", "{}", GOOD + " please", f"Call:\n{GOOD}",
    '{"name": "new", "arguments": {}}', '{"name": "Ann", "city": "X"}', "```json\n{\n```", "tool_call", "\ufffd\u2028",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_without_an_opened_call_is_text(text: str) -> None:
    assert parse(text, HERMES, KNOWN) == Parsed(text)


LLAMA_GOOD = GOOD.replace("arguments", "parameters")


@pytest.mark.parametrize(
    ("text", "calls", "fallbacks", "failure"),
    [
        (LLAMA_GOOD, (FIND,), (), ""),
        (f"\n\n{LLAMA_GOOD} ", (FIND,), (), ""),
        (GOOD, (FIND,), (OTHER_KEY,), ""),
        (f"```json\n{LLAMA_GOOD}\n```", (FIND,), (BARE,), ""),
        ('{"name": "think"}', (ToolCall("think", {}),), (), ""),
        (f"{LLAMA_GOOD}; {LLAMA_GOOD}", (), (), "invalid JSON (Extra data)"),
        ('{"city": "X"}', (), (), "it has no name"),
        ("{not JSON", (), (), "invalid JSON"),
        (f"I call {LLAMA_GOOD}", (), (), ""),
        (block(GOOD), (), (), ""),
    ],
)
def test_an_object_that_is_the_whole_answer(
    text: str, calls: tuple[ToolCall, ...], fallbacks: tuple[str, ...], failure: str
) -> None:
    parsed = parse(text, LLAMA, KNOWN)
    assert (parsed.calls, parsed.fallbacks) == (calls, fallbacks)
    assert failure in parsed.failure and bool(failure) == bool(parsed.failure)


XML = CallForm(xml=True)
TYPES: dict[str, Any] = {
    "text": {"type": "string"}, "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "count": {"type": "integer"}, "on": {"type": "boolean"}, "list": {"type": "array", "items": {}},
    "other": {"anyOf": [{"$ref": "#/$defs/x"}]},
}  # fmt: skip
TYPED = signatures(
    [*TOOLS, {"type": "function", "function": {"name": "typed", "parameters": {"type": "object", "properties": TYPES}}}]
)


def xml(name: str, **arguments: str) -> str:
    given = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in arguments.items())
    return f"<function={name}>\n{given}</function>"


@pytest.mark.parametrize(
    ("text", "calls", "fallbacks"),
    [
        (block(xml("find_order", id="1")), (FIND,), ()),
        ("Let me see.\n" + block(xml("find_order", id="1")) + block(xml("think")), (FIND, ToolCall("think", {})), ()),
        (block("<function=find_order><parameter=id>1</parameter></function>"), (FIND,), ()),
        (xml("find_order", id="1"), (FIND,), (BARE,)),
        (block(xml("typed", text="12345")), (ToolCall("typed", {"text": "12345"}),), ()),
        (block(xml("typed", text="None")), (ToolCall("typed", {"text": "None"}),), ()),
        (block(xml("typed", maybe="None")), (ToolCall("typed", {"maybe": None}),), ()),
        (block(xml("typed", text=" a\n\n b ")), (ToolCall("typed", {"text": " a\n\n b "}),), ()),
        (block(xml("typed", count="3", on="True")), (ToolCall("typed", {"count": 3, "on": True}),), ()),
        (block(xml("typed", list='[{"a": 1}]')), (ToolCall("typed", {"list": [{"a": 1}]}),), ()),
        (block(xml("typed", other='{"a": 1}')), (ToolCall("typed", {"other": {"a": 1}}),), ()),
        (block(xml("typed", other="as it is")), (ToolCall("typed", {"other": "as it is"}),), ()),
        (block(xml("new", zip="01234")), (ToolCall("new", {"zip": "01234"}),), ()),
    ],
)
def test_calls_of_the_xml_form(text: str, calls: tuple[ToolCall, ...], fallbacks: tuple[str, ...]) -> None:
    parsed = parse(text, XML, TYPED)
    assert (parsed.calls, parsed.fallbacks, parsed.failure) == (calls, fallbacks, "")
    assert "function" not in parsed.text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (GOOD, "it is no <function=NAME> with its end"),
        ("<function=think>", "it is no <function=NAME> with its end"),
        ("<function=>\n</function>", "it has no name"),
        (xml("find_order"), "it has no arguments, and find_order requires id"),
        (xml("typed", count="many"), "its argument count is invalid JSON"),
        (xml("typed", list="[1"), "its argument list is invalid JSON"),
        (xml("typed", count="NaN"), "its argument count is invalid JSON"),
        ("<function=think>\n<parameter=a>\n1\n</function>", "text that is no <parameter=KEY>"),
        ("<function=think>\nhello\n</function>", "text that is no <parameter=KEY>"),
        (
            "<function=think><parameter=a>1</parameter><parameter=a>2</parameter></function>",
            "it has the argument a twice",
        ),
        (xml("typed", text="a</parameter>b"), "text that is no <parameter=KEY>"),
    ],
)
def test_malformed_calls_of_the_xml_form_say_what_was_wrong(body: str, words: str) -> None:
    parsed = parse(block(body), XML, TYPED)
    assert not parsed.calls and words in parsed.failure and "<tool" not in parsed.failure
    assert "between the tags of a tool call" in parsed.failure


def test_a_form_with_one_call_an_answer_refuses_two() -> None:
    parsed = parse(block(GOOD) * 2, CallForm(several=False), KNOWN)
    assert not parsed.calls and "more than one call in an answer" in parsed.failure


def test_no_text_makes_the_parser_raise() -> None:
    rng = random.Random(0)
    pieces = [
        *("<function=think>", "<parameter=a>", "</parameter>", "</function>"),
        "<tool_call>",
        "</tool_call>",
        "{",
        "}",
        '"name"',
        '"arguments"',
        ":",
        ",",
        "[",
        '"',
        "\\",
        "think",
        "\n",
        "9",
    ]
    for _ in range(3000):
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(14)))
        for form in (HERMES, LLAMA, XML):
            parsed = parse(text, form, KNOWN)
            assert not (parsed.calls and parsed.failure)
            json.dumps([call.arguments for call in parsed.calls], allow_nan=False)


@pytest.mark.parametrize("schema", [{"type": 5}, {"type": [[]]}, {"type": {"a": 1}}, {"anyOf": 5}, {"oneOf": "ab"}])
def test_a_schema_of_no_known_form_leaves_an_argument_as_it_reads(schema: Any) -> None:
    """The policy can declare tools too; an error here would be a fault of the trial, and no grade."""
    known = signatures([{"function": {"name": "f", "parameters": {"properties": {"id": schema}}}}])
    text = "<tool_call><function=f><parameter=id>5</parameter></function></tool_call>"
    assert parse(text, CallForm(xml=True), known).calls == (ToolCall("f", {"id": 5}),)
