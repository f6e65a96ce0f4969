"""Which cases of a test run each time, and which in the nightly tier."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest


def first(n: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a test, tuples for several: the first `n` run each time, the others are nightly."""
    cases = iter(values)
    every_run = list(islice(cases, n))
    return every_run + [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly) for case in cases
    ]


def thirds(names: Iterable[str]) -> list[Any]:
    """Parameters of a test that takes names: every third one runs each time, the others are nightly, together."""
    every = list(names)
    return first(1, [every[::3], [name for number, name in enumerate(every) if number % 3]])
