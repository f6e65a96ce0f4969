"""What a Tinker API does with what we send: measured on a self-hosted server, from its documents on Tinker cloud."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

ADAM_SETTINGS = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")
CLIP_SETTINGS = frozenset({"clip_low_threshold", "clip_high_threshold"})


@dataclass(frozen=True, slots=True)
class Contract:
    """`reduction`: how per-token losses become one gradient.

    sum: over all tokens and datums, Tinker's. example_mean: each datum's sum over its sum of weights, then the mean
    over the datums between two optimizer steps. unknown: measured, and neither.
    """

    source: str  # "measured 2026-11-21 ..." or "documents"
    reduction: Literal["sum", "example_mean", "unknown"]
    losses: Mapping[str, frozenset[str]]  # accepted losses, each with the settings that have an effect
    adam: Mapping[str, bool | None]  # ADAM_SETTINGS: whether it reaches the optimizer
    decays_other_adapters: bool | None  # weight_decay of one adapter shrinks those of all other users
    frozen_samplers: bool | None  # a sampling client keeps its weights, and sampling never touches those in training
    prompt_logprobs: bool  # scores given tokens, of the base model too
    can_sample: bool


TINKER_DOCUMENTS = Contract(
    source="Tinker's documents, 2026-11",
    reduction="sum",
    losses=MappingProxyType(
        {
            "cross_entropy": frozenset(),
            "importance_sampling": frozenset(),
            "ppo": CLIP_SETTINGS,
            "cispo": CLIP_SETTINGS,
        }
    ),
    adam=MappingProxyType(dict.fromkeys(ADAM_SETTINGS, True)),
    decays_other_adapters=False,
    frozen_samplers=True,
    prompt_logprobs=True,
    can_sample=True,
)
