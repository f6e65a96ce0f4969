"""A guard of tau2's tool `calculate`, which is `eval` over digits and `+-*/(). `: `9**9**9` would hang the process."""

import re
from collections.abc import Mapping
from typing import Any

MOST_CHARACTERS = 2_000  # beyond that the tool would compile for long
_POWER = re.compile(r"\*\*")
_SMALL = re.compile(r"\*\*\s*[-+]?\d{1,2}(?![\d_eE(])")  # a power whose exponent has two digits at most


def refusal(arguments: Mapping[str, Any]) -> str | None:
    """Return why `calculate` may not run with these arguments; None = it may."""
    expression = arguments.get("expression")
    if not isinstance(expression, str):
        return None
    if len(expression) > MOST_CHARACTERS:
        return f"Expression longer than {MOST_CHARACTERS} characters"
    if (powers := len(_POWER.findall(expression))) and (powers > 1 or _SMALL.search(expression) is None):
        return "Only one power, with an exponent of two digits at most"
    return None
