"""What the engine tells the API, through a file: its counters, and what fits into its memory."""

import json
import os
from pathlib import Path
from typing import Any

LOAD_FILE = "SKYRL_TX_LOAD_FILE"  # in the environment; engine_load writes the file


def read_load() -> dict[str, Any]:
    """{} until the engine has written it."""
    try:
        return json.loads(Path(os.environ[LOAD_FILE]).read_text())
    except (KeyError, OSError, ValueError):
        return {}


def memory() -> dict[str, Any]:
    """What engine_memory has measured; {} until then, and where the memory is not known."""
    return read_load().get("memory") or {}
