"""Layers whose memory grows with tokens times something wide are computed for a block of tokens at a time.

Upstream: skyrl/tx/models/qwen3.py, qwen3_5.py, llama3.py compute a feed-forward layer for all tokens at once: 13 GiB at
128K tokens of Qwen3-4B, and several times that in the backward pass. skyrl/tx/layers/attention.py has scores for each
pair of tokens wherever cuDNN does not compute attention. skyrl/tx/layers/stacked.py keeps nothing of a layer for the
backward pass, or everything.
Here a pass keeps the results of attention, and then of matrix products, of as many layers as its memory has room for.
Where a GPU's memory is too small for the results of attention of all layers, what each layer was given waits in the
host's memory for the backward pass (22.5 GiB at 128K tokens of Qwen3-4B).
"""

# pyright: reportMissingImports=false
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from skyrl.tx.layers import attention as attention_module
from skyrl.tx.layers.stacked import StackedDecoderLayers
from skyrl.tx.models import llama3, qwen3, qwen3_5

from repairs.engine_lora import PRODUCT

TOKENS = 8192  # of a block of a feed-forward layer: enough to fill a GPU
QUERIES = 512  # of a block of attention
LEAST = 1 << 30  # bytes worth keeping
stock_attention = attention_module.dot_product_attention
stock_layers = StackedDecoderLayers.__call__


def block_length(rows: int, tokens: int, most: int) -> int:
    """The longest that divides `tokens`, a few times by two, so that `rows` of it have at most `most` tokens."""
    while rows * tokens > most and tokens % 2 == 0:
        tokens //= 2
    return tokens


def in_blocks(compute: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array, length: int) -> jax.Array:
    """compute(block, number of its first token) for blocks (rows, length, ...) of x (rows, tokens, ...)."""
    rows, tokens = x.shape[:2]
    blocks = jnp.moveaxis(x.reshape(rows, tokens // length, length, *x.shape[2:]), 1, 0)
    starts = jnp.arange(0, tokens, length)
    done = jax.lax.map(jax.checkpoint(lambda part: compute(part[0], part[1])), (blocks, starts))
    return jnp.moveaxis(done, 0, 1).reshape(rows, tokens, *done.shape[3:])


def with_blocks(stock_call: Any) -> Any:
    def call(self: Any, x: jax.Array, adapter_indices: jax.Array | None = None, **flags: Any) -> Any:
        """Wraps a feed-forward layer; x has shape (rows, tokens, width)."""
        length = block_length(x.shape[0], x.shape[1], TOKENS)
        if length == x.shape[1] or any(flags.values()):
            return stock_call(self, x, adapter_indices=adapter_indices, **flags)
        return in_blocks(lambda block, _: stock_call(self, block, adapter_indices=adapter_indices), x, length)

    return call


def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, attention_mask: jax.Array, is_causal: bool, head_dim: int
) -> jax.Array:
    """Wraps dot_product_attention. q: (rows, tokens, heads, size)."""
    length = block_length(1, q.shape[1], QUERIES)
    fused = jax.default_backend() == "gpu" and q.dtype in attention_module._CUDNN_SUPPORTED_DTYPES
    if fused or not is_causal or length == q.shape[1]:
        return stock_attention(q, k, v, attention_mask, is_causal, head_dim)
    keys, values = k.astype(jnp.float32), v.astype(jnp.float32)  # in which their gradients add up

    def compute(queries: jax.Array, start: jax.Array) -> jax.Array:
        before = jnp.arange(k.shape[1]) <= start + jnp.arange(length)[:, None]
        mask = before & attention_mask[:, None, None, :].astype(bool)
        own = keys.astype(k.dtype), values.astype(v.dtype)
        return jax.nn.dot_product_attention(queries, *own, scale=head_dim**-0.5, mask=mask)

    return in_blocks(compute, q, length)


class Keeping(NamedTuple):
    """Bytes for what a pass keeps of its layers for the backward pass, beside what it must: free - per_token * tokens.

    `attention`, `products`, `inputs`: bytes of a token in a layer, of the results of attention and of linear layers,
    and of what the layer is given. `host`: bytes of the host's memory that a pass may take.
    """

    free: float = 0.0
    per_token: float = 0.0
    attention: int = 1
    products: int = 1
    inputs: int = 1
    host: float = 0.0


keeping = Keeping()  # engine_memory sets it


def keep_less() -> bool:
    """For passes that are traced from now on; False: they keep nothing that they need not already."""
    global keeping
    found = keeping.free > 0
    keeping = keeping._replace(free=keeping.free / 4 if keeping.free > 4 * LEAST else 0.0)
    return found


def is_attention(prim: Any, *_: Any, **_params: Any) -> bool:
    return prim.name.startswith("dot_product_attention_fwd")  # cuDNN's


INPUT = "layer_input"
ON_HOST = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=[INPUT],
    offload_src="device",
    offload_dst="pinned_host",
)
KEEP_PRODUCTS = jax.checkpoint_policies.save_from_both_policies(
    is_attention, jax.checkpoint_policies.save_only_these_names(PRODUCT)
)


def with_inputs_on_host(policy: Any) -> Any:
    """`policy`: what else is kept, on the device; None: nothing."""
    return lambda prim, *avals, **params: (
        bool(policy and policy(prim, *avals, **params)) or ON_HOST(prim, *avals, **params)
    )


def segments(count: int, tokens: int) -> list[tuple[int, Any]]:
    """Of `count` layers, how many keep what: (layers, policy). Attention first: of long rows it is most of the work."""
    free = keeping.free - keeping.per_token * tokens
    inputs = count * keeping.inputs * tokens
    if on_host := free < count * keeping.attention * tokens and inputs <= keeping.host:
        free += inputs
    attending = min(count, max(0, int(free / (keeping.attention * tokens))))
    left = free - attending * keeping.attention * tokens
    producing = min(count, max(0, int(left / (keeping.products * tokens)))) if attending == count else 0
    found = [(producing, KEEP_PRODUCTS), (attending - producing, is_attention), (count - attending, None)]
    return [(layers, with_inputs_on_host(policy) if on_host else policy) for layers, policy in found if layers]


def layers(self: Any, hidden_states: jax.Array, *, is_training: bool = False, **inputs: Any) -> Any:
    """Wraps StackedDecoderLayers.__call__ for passes."""
    flags = {name: inputs.pop(name) for name in ("output_hidden_states", "gradient_checkpointing")}
    if not is_training or flags["output_hidden_states"] or not self.num_layers:
        return stock_layers(self, hidden_states, is_training=is_training, **flags, **inputs)
    inputs.pop("decode_layers", None)
    graphdef, state = nnx.split(self._stacked)

    def layer(hidden: jax.Array, parameters: Any) -> tuple[jax.Array, None]:
        return nnx.merge(graphdef, parameters)(checkpoint_name(hidden, INPUT), **inputs)[0], None

    def numbered(hidden: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
        return layer(hidden, jax.tree.map(lambda stacked: stacked[number], state))

    if not flags["gradient_checkpointing"]:
        return jax.lax.scan(layer, hidden_states, state)[0], [], None
    found, done = segments(self.num_layers, hidden_states.shape[0] * hidden_states.shape[1]), 0
    if len(found) == 1:
        return jax.lax.scan(jax.checkpoint(layer, policy=found[0][1]), hidden_states, state)[0], [], None
    for count, policy in found:
        numbers = jnp.arange(done, done + count)
        hidden_states, _ = jax.lax.scan(jax.checkpoint(numbered, policy=policy), hidden_states, numbers)
        done += count
    return hidden_states, [], None


def apply() -> None:
    for kind in (qwen3.Qwen3MLP, qwen3.Qwen3MoeSparseMoeBlock, llama3.Llama3MLP, qwen3_5.Qwen3_5MLP):
        kind.__call__ = with_blocks(kind.__call__)
    for module in (qwen3, llama3, qwen3_5):
        module.dot_product_attention = attention
    StackedDecoderLayers.__call__ = layers
