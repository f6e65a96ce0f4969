"""The root mean square of a row is computed in float32, whatever the dtype of the model.

Upstream: skyrl/tx/layers/layernorm.py, RMSNorm.__call__ squares, averages and divides in the dtype of its input. In
bfloat16 a whole row is scaled by a factor that is wrong by up to 0.6 %, and how wrong depends on what XLA fuses: half
of what two shapes of one pass differ by. transformers and vLLM compute it in float32.
"""

# pyright: reportMissingImports=false
from typing import Any

import jax
import jax.numpy as jnp
from skyrl.tx.layers.layernorm import RMSNorm


def scaled(x: jax.Array, eps: float) -> jax.Array:
    """A row, shape (..., width), over its root mean square, in float32."""
    exact = x.astype(jnp.float32)
    return exact * jax.lax.rsqrt(jnp.mean(exact * exact, axis=-1, keepdims=True) + eps)


def norm(self: Any, x: jax.Array) -> jax.Array:
    """Replaces RMSNorm.__call__; rounds where transformers does."""
    return self.weight[...] * scaled(x, self.eps).astype(x.dtype)


def apply() -> None:
    RMSNorm.__call__ = norm
