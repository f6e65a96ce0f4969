"""The API hands grad_clip_norm on to the engine (engine_grad_clip).

Upstream: skyrl/tinker/api.py, AdamParams has no such field, and what a model does not name is dropped without a word.
"""

# pyright: reportMissingImports=false
from skyrl.tinker import types

from repairs import api_requests, shared


def to_types(self: api_requests.AdamParams) -> types.AdamParams:
    return types.AdamParams(**self.model_dump())  # repairs.shared's, which has the field


def apply() -> None:
    shared.apply()
    api_requests.AdamParams.to_types = to_types
    api_requests.apply()
