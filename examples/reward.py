"""An addition to the reward of training. harbortrainer train reward=examples/reward.py:short ..."""

from harbortrainer import Trajectory


def short(trajectory: Trajectory) -> float:
    """Each turn costs a hundredth."""
    return -0.01 * len(trajectory.turns)
