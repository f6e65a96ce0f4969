"""Words and texts of lines and tables."""

import difflib
from collections.abc import Iterable


def counted(number: int, things: str) -> str:
    """`2 steps`, `1 step`. `things`: a plural in -s, or -es after ch."""
    one = things.removesuffix("es") if things.endswith("ches") else things.removesuffix("s")
    return f"{number} {one if number == 1 else things}"


def meant(name: str, known: Iterable[str]) -> str:
    """Return a question whether one of the known names was meant; "" = none is like it."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else ""


def shortened(text: str, head: int, tail: int) -> str:
    """Cut a text that is longer than both together to the first `head` and the last `tail` characters."""
    left_out = len(text) - head - tail
    return text if left_out <= 0 else f"{text[:head]}\n[… {left_out} characters left out …]\n{text[-tail:]}"
