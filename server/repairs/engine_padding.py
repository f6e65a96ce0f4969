"""Padding of a sampling batch stops when the batch does.

Upstream: skyrl/backends/jax.py, JaxBackendImpl.sample fills a batch up with empty prompts. They hardly ever draw a stop
token, so a batch that is not full runs to max_tokens however soon its real sequences end.
"""

# pyright: reportMissingImports=false
from typing import Any

from skyrl.backends import jax as backend


def pad_with_first(rows: list, count: int, *, fill: Any) -> list:
    """Replaces skyrl.backends.utils.pad in sample: a copy of a row, seed and all, generates what it does."""
    return rows + [rows[0]] * (count - len(rows))


def apply() -> None:
    backend.pad = pad_with_first
