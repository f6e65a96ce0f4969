"""What server/sampler.py, the supervisor of vLLM, writes about its servers, as others read it.

Nothing of skyrl is imported here: the supervisor and the unit tests run without it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict


class ReplicaStatus(TypedDict):
    """`deaths`: since the start; `cause`: the last line of its log that names an error; `log`: the file."""

    url: str
    state: Literal["starting", "ready", "given up"]
    deaths: int
    cause: str
    log: str


def read_status(file: Path | None) -> list[ReplicaStatus]:
    """[] while nothing is written, and without a supervisor."""
    try:
        return json.loads(file.read_text()) if file is not None else []
    except (OSError, ValueError):
        return []


def trouble(replicas: Sequence[ReplicaStatus]) -> str:
    """What follows a failure in an error message: deaths, causes, logs. Empty where nothing is known."""
    parts = [
        f"{'it' if len(replicas) == 1 else one['url']} ended {one['deaths']} times"
        + (f" ({one['cause']})" if one["cause"] else "")
        + f", its log: {one['log']}"
        for one in replicas
        if one["deaths"]
    ]
    return "".join(f"; {part}" for part in parts)
