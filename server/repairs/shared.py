"""Types of requests that cross from the API process to the engine, extended in both.

Upstream: skyrl/tinker/types.py, AdamParams has no grad_clip_norm, so what a client sets is dropped without a word;
SampleInput names a sampler and not its weights.
"""

# pyright: reportMissingImports=false
from typing import Any

from skyrl.tinker import types


class AdamParams(types.AdamParams):
    grad_clip_norm: float = 0.0  # global norm of the summed gradient; 0: no clipping


class OptimStepInput(types.OptimStepInput):
    adam_params: AdamParams


class SampleInput(types.SampleInput):
    """`weights`: the version of the sampler's file when the sample was asked for; None for the base model."""

    weights: str | None = None


def sampler_file(base: Any, model_id: str, checkpoint_id: str) -> Any:
    """`base`: the folder of all checkpoints, which may be one in somebody's cloud."""
    return base / model_id / "sampler_weights" / f"{checkpoint_id}.tar.gz"


def apply_samples() -> None:
    types.SampleInput = SampleInput


def apply() -> None:
    types.AdamParams = AdamParams
    types.OptimStepInput = OptimStepInput
