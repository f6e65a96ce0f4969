"""A taxonomy of two categories."""

import json
from pathlib import Path

CATEGORIES = [
    {"name": "repeats", "description": "calls the same tool with the same arguments again", "weight": -0.25},
    {"name": "short", "description": "does the work in few turns", "weight": 0.125},
]


def write_taxonomy(path: Path) -> str:
    path.write_text(json.dumps(CATEGORIES))
    return str(path)
