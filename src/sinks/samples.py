"""Tables of a few conversations of a step, read from the run directory's conversations/."""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from src.run.directory import RunDirectory

COLUMNS = ("global_step", "task", "trial", "reward", "outcome", "turns", "conversation")
TRAINING, EVALUATION = "samples/training", "samples/evaluation"
MOST_ROWS = 8  # of a table
MOST_CHARACTERS = 6000  # of one conversation
MOST_LINE = 4_000_000  # bytes; a longer stored conversation is skipped

Row = list[Any]


def sampled_tables(run: RunDirectory, row: dict[str, Any]) -> dict[str, list[Row]]:
    """Tables with COLUMNS for the batch and the evaluation of one row of metrics.jsonl; none without conversations."""
    step = row["global_step"]
    folder = run.path / "conversations"
    files = {TRAINING: folder / f"step_{step - 1:06d}.jsonl"} if "reward/mean" in row else {}
    if "eval/reward_mean" in row:
        files[EVALUATION] = folder / f"eval_{step:06d}.jsonl"
    return {name: rows for name, file in files.items() if (rows := _rows(file, step))}


def _rows(file: Path, step: int) -> list[Row]:
    if not file.is_file():
        return []
    return [_row(json.loads(line), step) for line in _chosen(file)]


def _chosen(file: Path) -> list[bytes]:
    """Pick MOST_ROWS lines, evenly spread because tasks lie in order; only these are held in memory."""
    with file.open("rb") as lines:
        short = [number for number, line in enumerate(lines) if len(line) <= MOST_LINE]
    count = min(len(short), MOST_ROWS)
    wanted = {short[place * len(short) // count] for place in range(count)}
    with file.open("rb") as lines:
        return [line for number, line in enumerate(islice(lines, max(wanted, default=-1) + 1)) if number in wanted]


def _row(record: dict[str, Any], step: int) -> Row:
    messages = record["messages"]
    turns = sum(message["role"] == "assistant" for message in messages)
    known = [record[name] for name in ("task", "trial", "reward", "outcome")]
    return [step, *known, turns, cut(_text(messages))]


def _text(messages: Sequence[dict[str, Any]]) -> str:
    return "\n\n".join(f"## {message['role']}\n{message['content']}" for message in messages)


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """Keep a third of `most` from the beginning of a long text, the rest from its end."""
    if len(text) <= most:
        return text
    head, tail = text[: most // 3], text[-(most - most // 3) :]
    return f"{head}\n[… {len(text) - len(head) - len(tail)} characters left out …]\n{tail}"
