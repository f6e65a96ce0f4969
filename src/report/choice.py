"""Which trials of a large run are shown in full."""

import random
from collections.abc import Sequence
from itertools import chain, zip_longest

from src.report.trials import EVALUATION, TRAIN, TrialRow


def choose(trials: Sequence[TrialRow], most: int) -> list[int]:
    """Indices, most telling first, taken in turn: failures of every cause, the last training batch and the last
    evaluation, the best, the worst, and some at random (the same ones each time).
    """
    ended = [index for index, trial in enumerate(trials) if trial.ended is not None]
    graded = [index for index in ended if trials[index].reward is not None]
    by_reward = sorted(graded, key=lambda index: (trials[index].reward or 0.0, trials[index].advantage or 0.0))
    anyhow = random.Random(0).sample(ended, len(ended))
    kinds = [_failures(trials, ended), _last(trials, ended, TRAIN), _last(trials, ended, EVALUATION)]
    turns = zip_longest(*kinds, by_reward[::-1], by_reward, anyhow)
    return list(dict.fromkeys(index for index in chain.from_iterable(turns) if index is not None))[:most]


def _failures(trials: Sequence[TrialRow], ended: Sequence[int]) -> list[int]:
    """Trials without a grade, newest first; those with a cause of their own before those that repeat it."""
    lost = [index for index in reversed(ended) if trials[index].reward is None]
    seen: set[tuple[str, str]] = set()
    first: list[int] = []
    for index in lost:
        cause = (trials[index].outcome, trials[index].cause[:40])
        if cause not in seen:
            seen.add(cause)
            first.append(index)
    return first + [index for index in lost if index not in set(first)]


def _last(trials: Sequence[TrialRow], ended: Sequence[int], kind: str) -> list[int]:
    steps = [trials[index].step or 0 for index in ended if trials[index].kind == kind]
    return [i for i in ended if trials[i].kind == kind and trials[i].step == max(steps)]
