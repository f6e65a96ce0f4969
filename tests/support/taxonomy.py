"""A judge, and a taxonomy of two categories."""

import json
from pathlib import Path
from typing import Any

CATEGORIES = [
    {"name": "repeats", "description": "calls the same tool with the same arguments again", "weight": -0.25},
    {"name": "short", "description": "does the work in few turns", "weight": 0.125},
]


def write_taxonomy(path: Path) -> str:
    path.write_text(json.dumps(CATEGORIES))
    return str(path)


def judge_file(**parts: Any) -> str:
    """The text of a judge's file; None leaves a part out."""
    value = {"model": "j", "url": "http://judge/v1"} | parts
    return json.dumps({name: part for name, part in value.items() if part is not None})


def user_file(**parts: Any) -> str:
    """The text of a simulated user's file."""
    return judge_file(**{"model": "gpt", "url": "http://x/v1"} | parts)
