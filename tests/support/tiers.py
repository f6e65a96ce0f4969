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


def few(names: Iterable[str], most: int = 3) -> list[Any]:
    """Parameters of a test that takes names: `most` of them run each time, the others are nightly, together."""
    return first(1, _parted(names, most))


def spread(names: Iterable[str], most: int) -> list[Any]:
    """Parameters of a test that takes a name: `most` of them, from begin to end, run each time."""
    by_day, others = _parted(names, most)
    return first(len(by_day), [*by_day, *others])


def _parted(names: Iterable[str], most: int) -> tuple[list[str], list[str]]:
    every = list(names)
    by_day = every[:: -(-len(every) // most)]
    return by_day, [name for name in every if name not in by_day]
