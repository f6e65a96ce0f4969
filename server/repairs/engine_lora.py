"""LoRA as matrix products: x A B for every adapter of the view, without sorting tokens by adapter.

Upstream: skyrl/tx/layers/lora.py, LoRAMixin.apply_lora and LoRAExpert.__call__ sort the tokens of a batch by adapter,
multiply with ragged_dot and sort back, also where all have the same one: copies as wide as the layer, which the
backward pass makes again, are most of its memory and a fifth of its time.
Here the view of a pass has one adapter, and what samples a few: their low-rank products are computed for all tokens,
and all but a row's own are zero. Adapters may be float32: they are rounded to the dtype of `x` where they are used, so
that their gradients add up in float32.
"""

# pyright: reportMissingImports=false
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from skyrl.tx.layers import lora
from skyrl.tx.layers.util import ragged_dot

PRODUCT = "product"  # what a pass may keep for its backward pass (engine_blocks)
stock_expert = lora.LoRAExpert.__call__


def low_rank(layer: Any, x: jax.Array, dtype: Any) -> jax.Array:
    """x A of every slot, shape (rows, ..., slots, rank)."""
    matrices = layer.lora_A[...].astype(dtype)
    if matrices.ndim == 2:  # of flattened()
        return (x @ matrices).reshape(*x.shape[:-1], layer.max_lora_adapters, -1)
    if isinstance(layer, lora.LoRAEmbed):
        return jnp.moveaxis(matrices[:, x], 0, -2)
    return jnp.einsum("n...i,sir->n...sr", x, matrices)


def flattened(layers: Any) -> Any:
    """Layers with each A, shape (slots, in, rank), as (in, slots * rank): a loop's steps need not transpose it."""

    def flat(path: tuple, value: jax.Array) -> jax.Array:
        if path[-2].key != "lora_A" or value.ndim != 3:  # experts' have one more
            return value
        return jnp.moveaxis(value, 0, 1).reshape(value.shape[1], -1)

    return jax.tree.map_with_path(flat, layers)


def apply_lora(self: Any, x: jax.Array, base_output: jax.Array, adapter_indices: jax.Array | None) -> jax.Array:
    """Replaces LoRAMixin.apply_lora. `adapter_indices`: shape (rows,), the slot of each row of x."""
    if self.max_lora_adapters == 0 or adapter_indices is None:
        return base_output
    dtype = base_output.dtype
    inner = checkpoint_name(low_rank(self, x, dtype) * self.lora_scaling[...].astype(dtype)[:, None], PRODUCT)
    if self.max_lora_adapters > 1:
        own = adapter_indices[:, None] == jnp.arange(self.max_lora_adapters)
        inner = jnp.where(own.reshape(own.shape[0], *[1] * (inner.ndim - 3), own.shape[1], 1), inner, 0)
    outer = jnp.einsum("n...sr,sro->n...o", inner, self.lora_B[...].astype(dtype))
    return checkpoint_name(base_output + outer, PRODUCT)


def expert_call(
    self: Any,
    x: jax.Array,
    group_sizes: jax.Array,
    adapter_indices_sorted: jax.Array | None = None,
    *,
    group_offset: jax.Array | None = None,
) -> jax.Array:
    """Wraps LoRAExpert.__call__: with one adapter, tokens that are sorted by expert are sorted enough."""
    if self.max_lora_adapters != 1 or adapter_indices_sorted is None:
        return stock_expert(self, x, group_sizes, adapter_indices_sorted, group_offset=group_offset)
    base = ragged_dot(x, self.weight[...], group_sizes, group_offset=group_offset)
    inner = ragged_dot(x, self.lora_A[...][0].astype(base.dtype), group_sizes, group_offset=group_offset)
    outer = ragged_dot(inner, self.lora_B[...][0].astype(base.dtype), group_sizes, group_offset=group_offset)
    return base + outer * self.lora_scaling[...][0].astype(base.dtype)


def apply() -> None:
    lora.LoRAMixin.apply_lora = apply_lora
    lora.LoRAExpert.__call__ = expert_call
