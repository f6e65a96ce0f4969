"""Conversations of others, row by row: JSON lines, parquet, and trials of jobs, in one form."""

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harbortrainer.config import JOB
from harbortrainer.errors import UserError
from harbortrainer.model_api.normal import tool
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.tools import Tool, ToolCall, written
from harbortrainer.sft.jobs import trials_of

COLUMNS = ("messages", "conversations")
_SHAREGPT = {"human": "user", "gpt": "assistant", "observation": "tool", "function_response": "tool"}

Record = Mapping[str, Any]  # "messages" or "conversations", and what else the row has


@dataclass(frozen=True, slots=True)
class Row:
    """A row. `where`: "line 3". `read` raises ValueError, one line, for what is no conversation."""

    where: str
    read: Callable[[], Record]


def rows_of(given: str, min_reward: float) -> Iterator[Row]:
    """Yield the rows of a file, or of JOB and a folder. Raises UserError for what cannot be read."""
    path = Path(given.removeprefix(JOB)).expanduser()
    try:
        if given.startswith(JOB):
            for name, read in trials_of(path, min_reward):
                yield Row(f"trial {name}", read)
        elif path.suffix == ".parquet":
            for number, record in enumerate(_parquet(given, path), 1):
                yield Row(f"row {number}", partial(_object, record))
        else:
            for number, line in enumerate(path.read_bytes().splitlines(), 1):
                if line.strip():
                    yield Row(f"line {number}", partial(_object, _json(given, number, line)))
    except OSError as error:
        raise UserError(f"data={given}: cannot be read ({error.strerror})") from None


def messages_of(record: Record, template: ChatTemplate) -> list[Any]:
    """Return messages with role and content; calls become text in the template's form.

    Raises ValueError, and UserError without one.
    """
    found = next((record[name] for name in COLUMNS if record.get(name) is not None), None)
    if not isinstance(found, list):
        raise ValueError('must be an object with a list "messages"')
    return [_plain(one, template) if isinstance(one, Mapping) else one for one in found]


def tools_of(record: Record) -> list[Tool]:
    """Return the row's tools, in the form in which the model API declares them. Raises ValueError."""
    declared = record.get("tools") or []
    shaped = isinstance(declared, list) and all(isinstance(one, dict) for one in declared)
    functions: list[Any] = [one.get("function") for one in declared] if shaped else [None]
    if not all(isinstance(one, dict) for one in functions):
        raise ValueError('"tools" must be a list of objects {"type": "function", "function": {...}}')
    return [tool(one) for one in functions]


def _plain(message: Record, template: ChatTemplate) -> dict[str, Any]:
    """One message of OpenAI's form or of ShareGPT's."""
    role, content = message.get("role"), message.get("content")
    if role is None and "from" in message:
        role, content = _SHAREGPT.get(message["from"], message["from"]), message.get("value")
    if isinstance(content, list):
        content = _text(content)
    calls = [_call(one, template) for one in message.get("tool_calls") or ()]
    return {"role": role, "content": "\n".join(filter(None, [content, *calls])) if calls else content}


def _text(parts: Sequence[Any]) -> str:
    if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
        raise ValueError("a message has parts that are no text")
    return "".join(part["text"] for part in parts)


def _call(call: Any, template: ChatTemplate) -> str:
    try:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments or {}
        return written(ToolCall(str(name), dict(arguments)), template.call_form)
    except (KeyError, TypeError, ValueError):
        raise ValueError('a call is no {"function": {"name": …, "arguments": OBJECT}}') from None


def _object(value: Any) -> Record:
    if not isinstance(value, dict):
        raise ValueError('must be an object with a list "messages"')
    return value


def _json(given: str, number: int, line: bytes) -> Any:
    """Raises UserError, which names the column: a file that is damaged may lack more than this line."""
    try:
        return json.loads(line.decode())
    except json.JSONDecodeError as error:
        why = f"no JSON object ({error.msg} at column {error.colno}); mend or delete the line"
    except UnicodeDecodeError as error:
        why = f"not UTF-8 ({error.reason} at byte {error.start + 1}); convert the file"
    raise UserError(f"data={given}: line {number}: {why}")


def _parquet(given: str, path: Path) -> Iterator[Any]:
    """Raises UserError, OSError."""
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(f"data={given}: needs pyarrow; install this package with its extra parquet") from None
    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except arrow.ArrowException as error:
        raise UserError(f"data={given}: no parquet file ({str(error).splitlines()[0]})") from None
