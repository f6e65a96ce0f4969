"""The likeliest tokens at each place of a prompt, with their log-probabilities.

Upstream: skyrl/backends/jax.py, JaxBackendImpl.sample answers "not supported" when the work is done.
Here the scoring of prompts (engine_waves) takes them from the logits of a block of tokens at a time.
"""

# pyright: reportMissingImports=false
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from skyrl.tinker import types

from repairs.engine_blocks import block_length, in_blocks

TOKENS = 1024  # of a block: logits are as wide as the vocabulary


def likeliest(model: Any, hidden: jax.Array, adapters: jax.Array, best: int) -> jax.Array:
    """(B, T, 2 * best): log-probabilities of the likeliest tokens after each, falling, then their ids as float32."""
    if not best:
        return jnp.zeros((*hidden.shape[:2], 0), jnp.float32)

    def compute(block: jax.Array, _start: jax.Array) -> jax.Array:
        logits = model.compute_logits(block, adapters).astype(jnp.float32)
        values, ids = jax.lax.top_k(logits, best)
        logprobs = values - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        return jnp.concatenate([logprobs, ids.astype(jnp.float32)], axis=-1)  # ids below 2**24 are exact

    return in_blocks(compute, hidden, block_length(hidden.shape[0], hidden.shape[1], TOKENS))


class Asked:
    """What the wave that is computed now shall find besides its scores, and has found: skyrl passes on neither.

    `best`: a power of two, 0 = nothing; a program for each. `found`: as `likeliest` gives it.
    """

    def __init__(self) -> None:
        self.best, self.found = 0, np.zeros((0, 0, 0), np.float32)

    def take(self, rows: list[int], batch: types.PreparedSampleBatch, into: dict[int, list[Any]]) -> None:
        """Puts the found into answers by row: None for the first token, (id, log-probability) for each other."""
        counts = asked_of(batch) if self.best else {}
        for values, row in zip(self.found, rows, strict=False):
            if count := counts.get(row, 0):
                tokens = sum(len(chunk.tokens) for chunk in batch.all_model_inputs[row].chunks)
                places = values[: tokens - 1]
                ids = places[:, self.best : self.best + count].astype(int).tolist()
                pairs = zip(ids, places[:, :count].tolist(), strict=True)
                into[row] = [None, *([*zip(*pair, strict=True)] for pair in pairs)]


asked = Asked()


def asked_of(batch: types.PreparedSampleBatch) -> dict[int, int]:
    """By the first row of each request."""
    return {start: top for _, _, start, _, scored, top in batch.request_batch_slices if scored and top > 0}


def ask(batch: types.PreparedSampleBatch, rows: list[int]) -> None:
    """Before a wave of these rows."""
    counts = asked_of(batch)
    most = max([0, *(counts.get(row, 0) for row in rows)])
    asked.best = 1 << (most - 1).bit_length() if most else 0
