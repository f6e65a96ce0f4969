"""An advantage for each turn. harbortrainer train advantage=examples/advantage.py:against_the_best ..."""

from collections.abc import Sequence

from harbortrainer import Trajectory


def against_the_best(rewards: Sequence[float], trajectories: Sequence[Trajectory]) -> list[list[float]]:
    """A trajectory loses what the best of its group has more; the later a turn, the more it counts."""
    best = max(rewards)
    return [
        [(reward - best) * (turn + 1) / len(one.turns) for turn in range(len(one.turns))]
        for reward, one in zip(rewards, trajectories, strict=True)
    ]
