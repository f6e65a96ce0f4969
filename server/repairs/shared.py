"""Types of requests that cross from the API process to the engine, extended in both.

Upstream: skyrl/tinker/types.py, AdamParams has no grad_clip_norm, so what a client sets is dropped without a word.
"""

# pyright: reportMissingImports=false
from skyrl.tinker import types


class AdamParams(types.AdamParams):
    grad_clip_norm: float = 0.0  # global norm of the summed gradient; 0: no clipping


class OptimStepInput(types.OptimStepInput):
    adam_params: AdamParams


def apply() -> None:
    types.AdamParams = AdamParams
    types.OptimStepInput = OptimStepInput
