"""Log-probabilities of tokens that the client names, at each place of a prompt (the SDK's target_prompt_logprobs).

Upstream: skyrl/tinker/api.py, SampleRequest drops the field without a word; the SDK's answer has none.
Here a second pass of a scoring (engine_waves) that has such prompts finds them, as a loss with several targets does.
"""

# pyright: reportMissingImports=false, reportCallIssue=false
from typing import Any

import jax
import numpy as np
from skyrl.tinker import types

from repairs import engine_losses
from repairs.engine_programs import compiling, programs
from repairs.engine_shapes import power_of_two
from repairs.shared import Targets, TargetScores


@jax.jit
def score(model: Any, ids: jax.Array, mask: jax.Array, adapters: jax.Array, targets: jax.Array) -> jax.Array:
    """Of targets (B, T, K), each as what follows its place."""
    hidden = model(ids, attention_mask=mask, adapter_indices=adapters, is_training=True).last_hidden_state
    return engine_losses.target_logprobs(model, hidden, targets, adapters)


class Named:
    """The targets of the requests that the engine has in hand, of the rows of a wave, and what was found for them."""

    def __init__(self) -> None:
        self.by_request: dict[str, Targets] = {}
        self._rows: list[Targets | None] = []
        self._found: list[TargetScores | None] = []

    def ask(self, batch: types.PreparedSampleBatch, rows: list[int]) -> None:
        """Before a wave of these rows."""
        of = {start: self.by_request.get(key) for key, _, start, *_ in batch.request_batch_slices}
        self._rows, self._found = [of.get(row) for row in rows], [None] * len(rows)

    def find(self, model: Any, ids: jax.Array, mask: jax.Array, adapters: jax.Array) -> None:
        """Of a wave, ids (B, T). Raises TooLarge."""
        if not any(self._rows):
            return
        width = power_of_two(max(one.shape[1] for one in self._rows if one))
        table = np.zeros((*ids.shape, width), np.int32)
        for row, one in enumerate(self._rows):
            if one:
                table[row][one.cells()] = np.maximum(one.ids, 0)
        sharding = jax.NamedSharding(ids.sharding.mesh, jax.P("fsdp", None, None))
        arguments = model, ids, mask, adapters, jax.device_put(table, sharding)
        name = f"a scoring of {ids.shape[0]} x {ids.shape[1]} tokens with {width} targets each"
        run = score
        if sharding.mesh.size == 1:
            run = programs.get(("targets", *table.shape), name, compiling(score, sharding.mesh, *arguments))
        found = jax.device_get(run(*arguments))
        self._found = [one and one.scores(found[row]) for row, one in enumerate(self._rows)]

    def take(self, rows: list[int], into: dict[int, Any]) -> None:
        into.update(zip(rows, self._found, strict=True))


named = Named()
