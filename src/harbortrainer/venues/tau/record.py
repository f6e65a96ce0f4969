"""`conversation.json` in a trial's folder: tau2's `SimulationRun`, and what a person wants to see beside it."""

import json
from pathlib import Path
from typing import Any

from harbortrainer.durable.files import replace_text
from harbortrainer.venues.tau.data import data
from harbortrainer.venues.tau.exchange import Exchange

FILE = "conversation.json"  # OWN_FILE of run/conversations.py, whose imports are heavy


def record(exchange: Exchange, name: str, end: str, seconds: float, grades: dict[str, float]) -> dict[str, Any]:
    """The conversation as JSON values. `end`: tau2's reason; `grades`: by basis, {} = ungraded.

    `messages` are those that tau2 knows. `shown` also has answers that could not be read; `system` and `tools` are what
    the policy's first prompt holds.
    """
    return {
        "id": name,
        "task_id": exchange.task.id,
        "start_time": exchange.messages[0]["timestamp"],
        "end_time": exchange.messages[-1]["timestamp"],
        "duration": seconds,
        "termination_reason": end,
        "messages": exchange.messages,
        "domain": exchange.domain.name,
        "package": data(exchange.domain.name).version,
        "grades": grades,
        "system": exchange.domain.system_prompt,
        "tools": exchange.domain.schemas,
        "shown": exchange.shown,
    }


def write_record(folder: Path, value: dict[str, Any]) -> None:
    """Write it over an earlier one. Blocks. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / FILE, json.dumps(value))
