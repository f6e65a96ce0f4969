"""Trials and sequences as a run makes them."""

import numpy as np

from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn


def trial(number: int, reward: float, turns: int = 2) -> Trajectory:
    made = tuple(Turn(0, (1, 2), (3, 4), (-0.1, -0.2), 0) for _ in range(turns))
    return Trajectory("task", f"s000000-p00-g{number:02d}", made, reward, Outcome.COMPLETED)


def trajectory(name="s000000-p00-g00", reward: float | None = 1.0, **changes) -> Trajectory:
    turns = (
        Turn(0, (1, 2, 3), (4, 5), (-0.5, -0.25), weights_version=3, text='{"a": 1}', seconds=0.5),
        Turn(0, (6,), (7,), (-1.5,), weights_version=3, truncated=True, text="é"),
        Turn(1, (9, 9), (), (), weights_version=4),
    )
    values = {"task_name": "t", "trial_name": name, "turns": turns, "reward": reward, "outcome": Outcome.COMPLETED}
    return Trajectory(**(values | changes))


def sequence(name: str, sampled: list[float], advantage: float = 1.0) -> TrainingSequence:
    """One token of the prompt, then sampled ones with these logprobs."""
    n = len(sampled) + 1
    mask = np.arange(n) > 0
    logprobs = np.array([0.0, *sampled], np.float32)
    return TrainingSequence(name, np.arange(n, dtype=np.int32), mask, logprobs, np.where(mask, advantage, 0.0))
