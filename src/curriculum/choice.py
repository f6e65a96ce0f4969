"""The tasks of one step, from the order of all tasks and those that rest. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from src.curriculum.standing import Standing


@dataclass(frozen=True, slots=True)
class Choice:
    """`tasks`: names, in order; `outside`: those of them whose mean was outside the band; `passed_over`: how often each
    other one was; `position`: in the order, where the next step begins."""

    tasks: list[str]
    outside: list[str]
    passed_over: dict[str, int]
    position: int


def choose(at: Callable[[int], str], length: int, position: int, n: int, standings: Mapping[str, Standing]) -> Choice:
    """`n` tasks from `position` on. `at`: name at a position of the order, which goes on for ever.

    Tasks that rest are passed over, and so is one that is in the batch already. When `length` positions, an epoch, gave
    fewer than `n`, those that rested longest fill the batch; then there is no other task, and any is taken again.
    """
    taken: list[str] = []
    passed: Counter[str] = Counter()
    end = position + length
    while len(taken) < n and position < end:
        name = at(position)
        position += 1
        if name in taken:
            continue
        if standings[name].passed_over + passed[name] < standings[name].rest:
            passed[name] += 1
        else:
            taken.append(name)
    left = sorted((name for name in passed if name not in taken), key=lambda name: -standings[name].passed_over)
    taken += left[: n - len(taken)]
    while len(taken) < n:
        taken.append(at(position))
        position += 1
    outside = [name for name in dict.fromkeys(taken) if standings[name].outside]
    return Choice(taken, outside, {name: count for name, count in passed.items() if name not in taken}, position)
