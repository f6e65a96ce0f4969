"""What every wire gives the service: a request in one form, and an answer, a stream and refusals in its own."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harbortrainer.model_api.normal import Malformed
from harbortrainer.model_api.reply import Reply
from harbortrainer.policy.tools import Message, Tool


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. `messages` and `tools`: in the form of `normal.py`; `max_tokens`: asked for, None = any."""

    messages: Sequence[Message]
    tools: Sequence[Tool]
    max_tokens: int | None
    stream: bool
    usage: bool  # whether a stream of chat completions ends with token counts


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an answer: a random id, seconds since 1970, the model's name as the client wrote it."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class Wire:
    """Pure functions. `read` raises Malformed, or KeyError, TypeError, AttributeError for other shapes.

    `path`: of the requests; `counting`: of requests for the number of their tokens alone, "" = it has none.
    """

    path: str
    read: Callable[[Mapping[str, Any]], Ask]
    whole: Callable[[Head, Reply], dict[str, Any]]
    stream: Callable[[Head, Reply, Ask], Iterator[str]]
    failure: Callable[[dict[str, Any]], str]  # an error within a stream
    ping: str = ": ping\n\n"
    counting: str = ""


def ask(body: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[Tool], *limits: str) -> Ask:
    """`limits`: names of the field for max_tokens. How it samples the run decides: no other parameter has an effect.

    Raises Malformed.
    """
    if not messages:
        raise Malformed("no messages")
    if body.get("n") not in (None, 1):
        raise Malformed("n: one answer a request is given here")
    asked = next((body[name] for name in limits if body.get(name) is not None), None)
    if asked is not None and (not isinstance(asked, int) or isinstance(asked, bool) or asked < 1):
        raise Malformed(f"{limits[0]}: a positive number of tokens")
    options = body.get("stream_options")
    usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
    return Ask(messages, tools, asked, bool(body.get("stream")), usage)


def error(status: int, code: str, text: str) -> dict[str, Any]:
    """Return a refusal that OpenAI's and Anthropic's clients both read."""
    kinds = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"message": text, "type": kind, "code": code, "param": None}}


def event(name: str, /, **fields: Any) -> str:
    """Return a server-sent event that names its type, as responses and Anthropic's messages have them."""
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n"
