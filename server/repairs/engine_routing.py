"""Which experts compute a token, and with what weights, is decided in float32, whatever the dtype of the model.

Upstream: skyrl/tx/models/qwen3.py, Qwen3Experts.__call__ takes the softmax of the router's logits in their dtype. In
bfloat16 probabilities near 1/32 are multiples of 2^-13: experts whose logits differ by less than 0.4 % are equal, the
one with the smaller number is taken, and weights are rounded. transformers and vLLM take this softmax in float32.
"""

# pyright: reportMissingImports=false
from typing import Any

import jax
import jax.numpy as jnp
from skyrl.tx.models.qwen3 import Qwen3Experts

stock_call = Qwen3Experts.__call__


def experts(self: Any, hidden: jax.Array, logits: jax.Array, adapter_indices: jax.Array | None = None) -> jax.Array:
    """Wraps Qwen3Experts.__call__. hidden: (tokens, width), logits: (tokens, experts)."""
    return stock_call(self, hidden, logits.astype(jnp.float32), adapter_indices).astype(hidden.dtype)


def apply() -> None:
    Qwen3Experts.__call__ = experts
