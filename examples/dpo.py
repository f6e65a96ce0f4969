"""DPO (arXiv 2305.18290) on the pairs of each group; the reference is the policy that sampled them.

harbortrainer train loss=examples/dpo.py:dpo ...
"""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from harbortrainer import LossSequence

BETA = 0.1


def dpo(sequences: Sequence[LossSequence]) -> tuple[Any, dict[str, float]]:
    """Of two trials of a task the one with the larger advantage is preferred: -log sigmoid(BETA * margin), in mean."""
    moved: dict[str, Any] = {}  # log-ratio to the reference, of each trial: it may have several sequences
    advantage, group = dict[str, float](), dict[str, str]()
    for one in sequences:
        ratio = ((one.logprobs_T - one.sampled_logprobs_T) * one.action_T).sum()
        moved[one.trial_name] = moved.get(one.trial_name, 0.0) + ratio
        advantage[one.trial_name] = float(one.advantages_T[one.action_T].mean())
        group[one.trial_name] = one.group
    pairs = [(w, m) for w, m in permutations(moved, 2) if group[w] == group[m] and advantage[w] > advantage[m]]
    losses = [-torch.nn.functional.logsigmoid(BETA * (moved[winner] - moved[loser])) for winner, loser in pairs]
    loss = sum(losses) / len(losses) if losses else 0.0 * sum(moved.values())
    return loss, {"pairs": float(len(pairs))}
