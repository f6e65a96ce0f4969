"""Names and settings of the losses, in both processes.

Upstream: skyrl/tinker/types.py, ForwardBackwardInput names losses that the SDK does not know (ppo_critic, dppo), lacks
some that it has (dro), and takes settings that JAX does not read (value_clip).
"""

# pyright: reportMissingImports=false
from typing import Literal

from skyrl.tinker import types

CLIP = {"clip_low_threshold", "clip_high_threshold"}
SETTINGS: dict[str, set[str]] = {
    "cross_entropy": set(),
    "importance_sampling": set(),
    "ppo": CLIP,
    "cispo": CLIP,
    "gspo": CLIP,
    "dro": {"beta"},
}
Loss = Literal["cross_entropy", "importance_sampling", "ppo", "cispo", "gspo", "dro"]
ELSEWHERE = {  # of the SDK, or of skyrl's other backends
    "stable_reinforce": "its formula is not published; importance_sampling, ppo, gspo and cispo are close to it",
    "custom": "losses are not run on this server; use forward_backward_custom, which computes yours on your side",
    "ppo_critic": "there are no critics here",
    "dppo": "the SDK does not have it; use ppo, gspo or cispo",
}
MOST_TARGETS = 128  # of a token, of cross_entropy
BETA = 0.05  # of dro, where none is given: the only value in Tinker's documents
RATIO_MASK = "sequence_ratio_mask"  # of gspo; travels as `values`, which only critics have


class ForwardBackwardInput(types.ForwardBackwardInput):
    loss_fn: Loss  # pyright: ignore[reportIncompatibleVariableOverride]


def apply() -> None:
    types.ForwardBackwardInput = ForwardBackwardInput
    types.SUPPORTED_LOSS_FNS = set(SETTINGS)
    types.LOSS_TYPES.update(gspo=len(types.LOSS_TYPES), dro=len(types.LOSS_TYPES) + 1)
