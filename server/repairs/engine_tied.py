"""The logits of tied embeddings are computed once in a training pass, not again for its backward pass.

Upstream: skyrl/tx/utils/logits_processor.py, LogitsProcessorMixin._compute_chunked_logprobs keeps nothing of a chunk's
logits, which are as wide as the vocabulary, and computes them again: a twentieth of the time of Qwen3-4B's pass.
Here a chunk leaves the derivative of each log-probability by its hidden state, as wide as that: the target's embedding
less the mean of all, by their probabilities. Embeddings are not trained here, and have no adapter as a head.
"""

# pyright: reportMissingImports=false
from typing import Any

import jax
import jax.numpy as jnp

from repairs.engine_logprobs import multiplied

CHUNK = 1024  # tokens


def chunks(hidden: jax.Array, table: jax.Array, targets: jax.Array, derive: bool) -> tuple[jax.Array, jax.Array]:
    """hidden (N, H), table (V, H), targets (N,) -> log-probabilities (N,), derivatives (N, H) or (N, 0)."""
    count, size = targets.shape[0], min(CHUNK, targets.shape[0])
    more = -count % size

    def compute(part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        own, ids = part
        logits = multiplied(own, table.T)
        norm = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        logprobs = jnp.take_along_axis(logits, ids[:, None], axis=-1) - norm
        if not derive:
            return logprobs[:, 0], own[:, :0]
        mean = jnp.matmul(jnp.exp(logits - norm).astype(table.dtype), table, preferred_element_type=jnp.float32)
        return logprobs[:, 0], (table[ids] - mean).astype(own.dtype)

    padded = jnp.pad(hidden, ((0, more), (0, 0))), jnp.pad(targets, (0, more))
    found = jax.lax.map(compute, jax.tree.map(lambda one: one.reshape(-1, size, *one.shape[1:]), padded))
    logprobs, derivatives = (one.reshape(count + more, *one.shape[2:])[:count] for one in found)
    return logprobs, derivatives


def plain(hidden: jax.Array, table: jax.Array, targets: jax.Array) -> jax.Array:
    return chunks(hidden, table, targets, derive=False)[0]


def forward(hidden: jax.Array, table: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    return chunks(hidden, table, targets, derive=True)


def backward(derivatives: jax.Array, given: jax.Array) -> tuple[jax.Array, None, None]:
    return (derivatives.astype(jnp.float32) * given[:, None]).astype(derivatives.dtype), None, None


tied: Any = jax.custom_vjp(plain)
tied.defvjp(forward, backward)


def logprobs(model: Any, hidden: jax.Array, targets: jax.Array, adapters: jax.Array) -> jax.Array:
    """Of targets (B, T), in float32."""
    if getattr(model, "lm_head", model) is not None:
        return model.compute_logprobs(hidden, targets, adapters)
    table = getattr(model.model, "language_model", model.model).embed_tokens.embedding[...]
    flat = hidden.reshape(-1, hidden.shape[-1])
    return tied(flat, table, targets.reshape(-1)).reshape(targets.shape)
