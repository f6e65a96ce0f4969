"""Encodes the special strings of a model as ordinary text where the chat template did not write them.

Instructions, terminal output and files may contain `<|im_end|>`. The template's own `<|im_end|>` becomes a control
token, one in a content becomes the tokens of its letters. A conversation without special strings is not touched here.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
ASSISTANT = "assistant"
_BRACKETED = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_MARKS = "|\uff5c_"  # the second is DeepSeek's
CALL_TAGS, RESULT_TAGS = ("<tool_call>", "</tool_call>"), ("<tool_response>", "</tool_response>")
_TAG = re.compile(r"</?[a-z_]+>")  # <think>, <tool_call>: answers may contain them
_NONCE = secrets.token_hex(16)  # no content can hold a stand-in; ids do not depend on it
_HIDDEN, _OWN = (
    f"\ue000{_NONCE}.%d\ue001",
    f"\ue000{_NONCE}-%d\ue001",
)  # private use: no template or normalizer alters it
_HIDDEN_PATTERN = re.compile(re.escape(_HIDDEN).replace("%d", r"(\d+)"))
_BEGINNING = 3  # letters
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token
_NEVER = re.compile(r"(?!)")


def control_strings(added: Iterable[Any], template: str) -> dict[str, bool]:
    """Return the added tokens that steer a model, each with whether it is special.

    These are special tokens, and others in brackets that the template writes or that look like marks (`<|…|>`,
    `<tool_call>`). Words, white space and tags of HTML are text, though some tokenizers have them as added tokens.
    """
    found = {}
    for token in added:
        name = token.content
        marks = _BRACKETED.fullmatch(name) and (name in template or any(letter in name for letter in _MARKS))
        if name.strip() and (token.special or marks or name in (THINK_OPEN, THINK_CLOSE)):
            found[name] = bool(token.special)
    return found


class SpecialStrings:
    """The special strings of one tokenizer: finds and hides them in contents, and encodes what was rendered."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: of transformers, with a chat template."""
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        added = list(tokenizer.added_tokens_decoder.values())
        strings = control_strings(added, str(tokenizer.chat_template))
        self._strings = frozenset(strings)
        self._anywhere = _pattern(strings)
        # A template may read these in a message, though the tokenizer has no token for them.
        read = [tag for tag in RESULT_TAGS if tag in str(tokenizer.chat_template)]
        self._in_messages = _pattern({*strings, *read})
        self._spoken = _pattern({*strings, *RESULT_TAGS, *CALL_TAGS, THINK_OPEN, THINK_CLOSE})
        self._in_answers = _pattern(name for name, special in strings.items() if special or not _TAG.fullmatch(name))
        normalized = any(token.normalized for token in added if token.content in strings)
        self._normalizer = self._backend.normalizer if normalized else None

    def count(self, content: str, role: str = "user") -> int:
        """Return the number of special strings in a message's content. In an answer, tags such as <think> are none."""
        pattern = self._in_answers if role == ASSISTANT else self._anywhere
        found = len(pattern.findall(content))
        if found or self._normalizer is None:
            return found
        return len(pattern.findall(self._normalizer.normalize_str(content)))  # full-width letters, for example

    def total(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of special strings anywhere in messages and tools."""
        said = [(text, message["role"]) for message in messages for text in strings_of(message)]
        said += [(text, "") for text in strings_of(tools)]
        return sum(self.count(*one) for one in said)

    def removed(self, text: str) -> str:
        """`text` without special strings and tags of tools, also those that appear when others are removed."""
        while (shorter := self._spoken.sub("", text)) != text:
            text = shorter
        return text

    def broken(self, text: str) -> str:
        """`text` with a space within each special string and tag of tools: another server reads them as text too."""
        return self._spoken.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    def hide(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str] | None]:
        """Return (messages and tools to render, with a stand-in for each special string; the strings).

        None = they have none.

        Strings anywhere within tools and within the calls of messages count as content.
        """
        hidden: list[str] = []

        def stand_in(found: re.Match[str]) -> str:
            hidden.append(found[0])
            return _HIDDEN % (len(hidden) - 1)

        def replaced(value: Any, pattern: re.Pattern[str]) -> Any:
            return with_strings(value, lambda text: pattern.sub(stand_in, text))

        shown = [
            {name: replaced(value, self._pattern(message, name)) for name, value in message.items()}
            for message in messages
        ]
        declared = [replaced(tool, self._in_messages) for tool in tools]
        if hidden or self._normalizer is None:
            return shown, declared, hidden or None
        return shown, declared, hidden if self.total(messages, tools) else None

    def _pattern(self, message: Mapping[str, Any], name: str) -> re.Pattern[str]:
        """Of the strings to hide in one field of a message: an answer's text keeps its tags."""
        if name == "role":
            return _NEVER
        return self._in_answers if message["role"] == ASSISTANT and name == "content" else self._in_messages

    def named(self, rendered: str, hidden: Sequence[str]) -> str:
        """Return a rendered text as `with_offsets` takes it: special strings in it, the template's, with their secret
        names; those of `hidden` are text.
        """
        own = self._private[2]
        text = self._anywhere.sub(lambda found: own[found[0]], rendered)
        return _HIDDEN_PATTERN.sub(lambda found: hidden[int(found[1])], text)

    def with_offsets(self, named: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids of a text that `named` made, and the characters of it that each one stands for."""
        tokenizer, ids, _ = self._private
        found = tokenizer.encode(named, add_special_tokens=False)
        return [ids.get(token, token) for token in found.ids], found.offsets

    @cached_property
    def _private(self) -> tuple["Tokenizer", dict[int, int], dict[str, str]]:
        """(a copy of the tokenizer with secret names of special strings, its ids -> the model's, string -> its name).

        Built at the first special string: a second for a large vocabulary.
        """
        from tokenizers import AddedToken, Tokenizer

        state = json.loads(self._backend.to_str())
        added, state["added_tokens"] = state["added_tokens"], []
        own = {one["content"]: _OWN % one["id"] for one in added if one["content"] in self._strings}
        _rename(state["model"], own)
        copy = Tokenizer.from_str(json.dumps(state | {"post_processor": None, "truncation": None, "padding": None}))
        names = [own.get(one["content"], one["content"]) for one in added]
        flags = [{name: one[name] for name in _FLAGS} for one in added]
        copy.add_tokens([AddedToken(name, **given) for name, given in zip(names, flags, strict=True)])
        numbers = copy.get_vocab(with_added_tokens=True)
        return copy, {numbers[name]: one["id"] for name, one in zip(names, added, strict=True)}, own


def _pattern(strings: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest string first, as tokenizers do. Some have a thousand strings: grouped by their beginning."""
    groups: dict[str, list[str]] = {}
    for name in sorted(strings, key=len, reverse=True):
        groups.setdefault(name[:_BEGINNING], []).append(re.escape(name[_BEGINNING:]))
    longest = sorted(groups.items(), key=lambda group: -len(group[0]))
    parts = [f"{re.escape(beginning)}(?:{'|'.join(rest)})" for beginning, rest in longest]
    return re.compile("|".join(parts)) if parts else _NEVER


def strings_of(value: Any) -> Iterator[str]:
    """Yield all strings within a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from strings_of(key)
            yield from strings_of(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings_of(inner)


def with_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return the JSON value with all strings within it changed, keys included; tuples become lists."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {with_strings(key, change): with_strings(inner, change) for key, inner in value.items()}
    return [with_strings(inner, change) for inner in value] if isinstance(value, list | tuple) else value


def _rename(model: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename entries of a vocabulary: some models (Unigram, BPE that ignores merges) take whole entries from a text."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(piece, piece): number for piece, number in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    if model.get("merges"):
        model["merges"] = [pair for pair in model["merges"] if not names.keys() & {*pair, "".join(pair)}]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
