"""Qwen3.5's linear attention (gated DeltaNet): states after a padded prompt, float32, memory of long contexts.

Upstream: skyrl/tx/models/qwen3_5.py, Qwen3_5GatedDeltaNet hands decoding its states after the padding of a prompt: the
convolution's last inputs are then zeros, and the recurrent state has decayed, so every token after the first is
sampled from another model. A_log, decay, states and norms have the model's dtype; transformers and vLLM compute them in
float32. Qwen3_5TextModel ignores gradient_checkpointing: 3 GB of every layer at 4,096 tokens of the 4B's shape.
skyrl/tx/utils/models.py, filter_lora trains these layers with train_attn=False too.
Here padding changes no state, tokens are computed in blocks that hand their states on, and a pass keeps of the layers
what engine_blocks says.
"""

# pyright: reportMissingImports=false
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from skyrl.tx.layers import lora
from skyrl.tx.models import qwen3_5
from skyrl.tx.models.types import ModelOutput
from skyrl.tx.utils import models

from repairs import engine_blocks
from repairs.engine_blocks import block_length
from repairs.engine_norms import scaled

TOKENS = 4096  # of a block: what its chunks hold in float32 is several times as wide as the layer
stock_net = qwen3_5.Qwen3_5GatedDeltaNet.__init__
stock_text = qwen3_5.Qwen3_5TextModel.__call__
stock_filter = models.filter_lora
States = tuple[jax.Array, jax.Array]


def init_net(self: Any, config: Any, layer_idx: int, **options: Any) -> None:
    """Wraps Qwen3_5GatedDeltaNet.__init__."""
    stock_net(self, config, layer_idx, **options)
    for parameter in (self.A_log, self.dt_bias):
        parameter.set_raw_value(parameter[...].astype(jnp.float32))


def norm(self: Any, x: jax.Array) -> jax.Array:
    """Replaces Qwen3_5RMSNorm.__call__."""
    return (scaled(x, self.eps) * (1 + self.weight[...].astype(jnp.float32))).astype(x.dtype)


def gated_norm(self: Any, hidden_states: jax.Array, gate: jax.Array) -> jax.Array:
    """Replaces Qwen3_5RMSNormGated.__call__. hidden_states: float32; the result has the dtype of `gate`."""
    exact = scaled(hidden_states, self.eps) * self.weight[...].astype(jnp.float32)
    return (exact * nnx.silu(gate.astype(jnp.float32))).astype(gate.dtype)


def convolved(self: Any, x: jax.Array, before: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """x: (rows, tokens, channels); before: (rows, kernel - 1, channels), the inputs that precede it.

    Returns the causal convolution in float32, and the inputs that precede what follows `count` (rows,) tokens of x.
    """
    size, tokens = self.conv_kernel_size, x.shape[1]
    joined = jnp.concatenate([before, x], axis=1)
    kernel = self.conv1d_weight[...].astype(jnp.float32)[:, 0]
    out = sum(joined[:, i : i + tokens].astype(jnp.float32) * kernel[i] for i in range(size))
    last = jax.vmap(lambda row, start: jax.lax.dynamic_slice_in_dim(row, start, size - 1))(joined, count)
    return nnx.silu(out), last


def advance(self: Any, x: jax.Array, mask: jax.Array, adapters: Any, states: States) -> tuple[jax.Array, States]:
    """A block (rows, tokens, width) through the layer; states before it -> states after its last real token."""
    rows, tokens, _ = x.shape
    mixed = self.in_proj_qkv(x, adapter_indices=adapters)
    gate = self.in_proj_z(x, adapter_indices=adapters).reshape(rows, tokens, -1, self.head_v_dim)
    write, forget = (project(x, adapter_indices=adapters) for project in (self.in_proj_b, self.in_proj_a))
    mixed, inputs = convolved(self, mixed, states[0], mask.sum(axis=1))
    query, key, value = jnp.split(mixed, (self.key_dim, self.key_dim * 2), axis=-1)
    query, key = (one.reshape(rows, tokens, -1, self.head_k_dim) for one in (query, key))
    repeats = self.num_v_heads // self.num_k_heads
    query, key = (jnp.repeat(one, repeats, axis=2) for one in (query, key))
    value = value.reshape(rows, tokens, -1, self.head_v_dim)
    is_real = mask[..., None].astype(bool)
    beta = jnp.where(is_real, nnx.sigmoid(write.astype(jnp.float32)), 0)
    steps = jax.nn.softplus(forget.astype(jnp.float32) + self.dt_bias[...])
    decay = jnp.where(is_real, -jnp.exp(self.A_log[...]) * steps, 0)
    rule = qwen3_5.chunk_gated_delta_rule if tokens > 1 else qwen3_5.recurrent_gated_delta_rule
    out, state = rule(query, key, value, decay, beta, initial_state=states[1])
    out = self.norm(out, gate).reshape(rows, tokens, -1)
    return self.out_proj(out, adapter_indices=adapters), (inputs, state)


def net(
    self: Any,
    hidden_states: jax.Array,
    *,
    attention_mask: jax.Array | None,
    adapter_indices: jax.Array | None = None,
    conv_state: jax.Array | None = None,
    recurrent_state: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Replaces Qwen3_5GatedDeltaNet.__call__. conv_state: (rows, kernel - 1, channels); recurrent_state: float32."""
    rows, tokens, _ = hidden_states.shape
    mask = jnp.ones((rows, tokens), jnp.int32) if attention_mask is None else attention_mask
    if conv_state is None or recurrent_state is None:
        conv_state = jnp.zeros((rows, self.conv_kernel_size - 1, self.conv_dim), hidden_states.dtype)
        recurrent_state = jnp.zeros((rows, self.num_v_heads, self.head_k_dim, self.head_v_dim), jnp.float32)
    length = block_length(rows, tokens, TOKENS)
    if length == tokens:
        out, states = advance(self, hidden_states, mask, adapter_indices, (conv_state, recurrent_state))
        return out, *states

    def block(states: States, part: tuple[jax.Array, jax.Array]) -> tuple[States, jax.Array]:
        out, states = advance(self, *part, adapter_indices, states)
        return states, out

    def split(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(rows, tokens // length, length, *x.shape[2:]), 1, 0)

    parts = split(hidden_states), split(mask)
    states, outs = jax.lax.scan(jax.checkpoint(block), (conv_state, recurrent_state), parts)
    return jnp.moveaxis(outs, 0, 1).reshape(hidden_states.shape), *states


def text_model(
    self: Any,
    input_ids: jax.Array,
    *,
    adapter_indices: jax.Array | None = None,
    output_hidden_states: bool | None = None,
    kv_cache: Any = None,
    is_training: bool = False,
    **inputs: jax.Array,
) -> Any:
    """Wraps Qwen3_5TextModel.__call__ for passes. `inputs`: attention_mask and positions."""
    if not is_training or output_hidden_states or not self.config.gradient_checkpointing:
        options = {"output_hidden_states": output_hidden_states, "kv_cache": kv_cache, "is_training": is_training}
        return stock_text(self, input_ids, adapter_indices=adapter_indices, **options, **inputs)
    hidden = self.embed_tokens(input_ids, adapter_indices=adapter_indices)
    found = engine_blocks.segments(len(self.layers), input_ids.size)
    policies = [policy for count, policy in found for _ in range(count)]
    for one, policy in zip(self.layers, policies, strict=True):
        hidden = kept_layer(one, hidden, policy, adapter_indices=adapter_indices, **inputs)
    return ModelOutput(last_hidden_state=self.norm(hidden), kv_cache=None)


def kept_layer(layer: Any, hidden: jax.Array, policy: Any, **inputs: Any) -> jax.Array:
    """The layer's output; `policy`: what is kept of it for the backward pass."""
    graphdef, state = nnx.split(layer)

    def compute(state: Any, hidden: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, state)(checkpoint_name(hidden, engine_blocks.INPUT), **inputs)[0]

    return jax.checkpoint(compute, policy=policy)(state, hidden)


def filter_lora(adapter_config: Any, path: tuple[str, ...]) -> bool:
    """Wraps skyrl's."""
    return stock_filter(adapter_config, path) and (adapter_config.train_attn or "linear_attn" not in path)


def apply() -> None:
    qwen3_5.Qwen3_5GatedDeltaNet.__init__ = init_net
    qwen3_5.Qwen3_5GatedDeltaNet.__call__ = net
    qwen3_5.Qwen3_5RMSNorm.__call__ = norm
    qwen3_5.Qwen3_5RMSNormGated.__call__ = gated_norm
    qwen3_5.Qwen3_5TextModel.__call__ = text_model
    models.filter_lora = lora.filter_lora = filter_lora
