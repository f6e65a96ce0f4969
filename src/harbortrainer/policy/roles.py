"""Who wrote each token of a prompt: roles of a message's parts, followed through template and tokenizer.

A second rendering has a mark wherever the author changes. It counts where it is the prompt's text but for the marks;
the ids are always those of the text without any.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harbortrainer.learning.trajectory import Role

_NONCE = secrets.token_hex(8)  # no content can hold a mark
_MARK = "\ue000" + _NONCE + "=%d\ue001"
_MARKED = re.compile(_MARK.replace("%d", r"(\d)"))
Span = tuple[int, int, Role]  # characters from, to


class Written(str):
    """A message's content that knows who wrote which part of it; all else of it is the harness's."""

    spans: tuple[Span, ...]

    def __new__(cls, text: str, *spans: Span) -> "Written":
        self = super().__new__(cls, text)
        self.spans = spans
        return self

    @classmethod
    def by(cls, role: Role, text: str) -> "Written":
        """Return a text of one author."""
        return cls(text, (0, len(text), role))


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids that a policy did not sample, and a byte each: who wrote it (`Role`)."""

    ids: list[int] = field(default_factory=list)
    roles: bytes = b""


def written_by(
    text: str, messages: Sequence[Mapping[str, Any]], text_of: Callable[[list[dict[str, Any]]], str], answers: bool
) -> bytes:
    """Return who wrote each character of `text`, which `text_of` makes of the messages.

    `answers`: they follow an action, so that results are the environment's. All is the template's where that writes
    another text around marks, also those that stand within the white space at the ends of a content.
    """
    for within in (False, True):
        plain, characters = unmarked(text_of([_marked(message, answers, within) for message in messages]))
        if plain == text:
            return characters
    return bytes(len(text))


def _marked(message: Mapping[str, Any], answers: bool, within: bool) -> dict[str, Any]:
    content = message["content"] or ""
    result = ((0, len(content), Role.ENVIRONMENT),) if message["role"] == "tool" else ()
    first = len(content) - len(content.lstrip()) if within else 0
    last = max(len(content.rstrip()), first) if within else len(content)
    marks = [(first, Role.HARNESS)]
    for start, end, role in getattr(content, "spans", result):
        told = Role.HARNESS if role is Role.ENVIRONMENT and not answers else role
        marks += [(min(max(start, first), last), told), (min(max(end, first), last), Role.HARNESS)]
    parts, at = [], 0
    for place, role in (*marks, (last, Role.TEMPLATE)):
        parts += [content[at:place], _MARK % role]
        at = place
    return {**message, "content": "".join([*parts, content[at:]])}


def unmarked(text: str) -> tuple[str, bytes]:
    """Return (a rendered text without its marks, the role of each of its characters)."""
    parts = _MARKED.split(text)
    told = [Role.TEMPLATE, *map(int, parts[1::2])]
    pairs = zip(parts[::2], told, strict=True)
    return "".join(parts[::2]), b"".join(bytes([role]) * len(part) for part, role in pairs)


def roles_of(offsets: Sequence[tuple[int, int]], characters: bytes) -> bytes:
    """Get the role of each token: that of its characters (`offsets`), and the lowest where it has those of several."""
    last = len(characters) - 1
    return bytes(min(characters[min(start, last) : max(end, min(start, last) + 1)]) for start, end in offsets)


class Offsets:
    """Encodes with one tokenizer of transformers, and tells which characters each id stands for."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids, and characters (from, to) of each."""
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        if self._untrimmed is None:
            return found["input_ids"], found["offset_mapping"]
        return found["input_ids"], self._untrimmed.encode(text, add_special_tokens=False).offsets

    @cached_property
    def _untrimmed(self) -> Any:
        """A copy, without that, of a tokenizer that leaves white space out of its offsets; None for any other."""
        backend = self._tokenizer.backend_tokenizer
        if backend.post_processor is None or b'"trim_offsets":true' not in backend.post_processor.__getstate__():
            return None
        return type(backend).from_str(json.dumps(json.loads(backend.to_str()) | {"post_processor": None}))
