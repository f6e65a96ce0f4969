"""Few shapes, bounded by tokens: JAX compiles a program for each, 3 to 30 s, and its memory grows with its tokens.

Upstream: skyrl/backends/jax.py, JaxBackendImpl._model_pass pads all datums of a call to its longest, cuts them into
micro batches by their number, and computes the last one with the datums that it has; skyrl/tx/utils/models.py,
round_up_seq_len has five lengths up to 128 tokens and two for each power of two beyond.
Here datums of like length are computed together, as many as make PASS tokens. Lengths are powers of two from SHORTEST
on, from FINE on also the middle between two, and of passes from LONG on the quarters. Short micro batches are filled up
with rows of one token without weight, which add exactly 0 to loss and gradient; longer ones to a power of two. Passes
of at most TINY tokens (a probe makes a hundred of them) are not filled up further than to a power of two.
"""

# pyright: reportMissingImports=false
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from skyrl.backends import jax as backend
from skyrl.backends.renderer import render_model_input
from skyrl.backends.utils import pad_batch, pad_to_fsdp
from skyrl.tinker import types

from repairs.engine_losses import settings
from repairs.engine_programs import TooLarge

TINY = 32  # tokens; no conversation of a trial is that short
SHORTEST = 128  # tokens
FINE = 1024  # tokens; beyond, the padding to a power of two costs more than a program
LONG = 4096  # tokens; beyond, the padding to the middle costs more than two programs
PASS = 8192  # tokens of a pass of a large model: more does not make a GPU faster
FILLED = 4096  # tokens of a pass that is filled up whatever it costs
pass_tokens = PASS  # less where the memory is small


class Part(NamedTuple):
    """One micro batch or wave: which of the rows, filled up to how many, padded to how many tokens."""

    rows: list[int]
    filled: int
    length: int


def power_of_two(number: int) -> int:
    """The least power of two from `number` on; `number` is at least 1."""
    return 1 << (number - 1).bit_length()


def prompt_length(tokens: int) -> int:
    """To how many tokens a prompt is filled up."""
    power = max(SHORTEST, power_of_two(max(1, tokens)))
    middle = power * 3 // 4
    return middle if middle > FINE and tokens <= middle else power


def pass_length(tokens: int) -> int:
    """To how many tokens the rows of a pass are filled up."""
    if tokens <= TINY:
        return TINY
    step = power_of_two(tokens) // 8
    return -(-tokens // step) * step if tokens > LONG else prompt_length(tokens)


def score_length(tokens: int) -> int:
    """To how many tokens prompts that are scored are filled up."""
    return pass_length(max(SHORTEST, tokens))


def lengths(most: int) -> list[int]:
    """Every score_length up to `most` tokens."""
    found: list[int] = []
    while (length := score_length(found[-1] + 1 if found else 1)) <= most:
        found.append(length)
    return found


def full_rows(length: int, micro_batch: int) -> int:
    """Datums of `length` tokens in a full pass. micro_batch: the most; 0: no limit but the tokens."""
    fitting = max(1, pass_tokens // length)
    if 0 < micro_batch <= fitting:
        return micro_batch
    return power_of_two(fitting + 1) // 2


def filled_rows(rows: int, length: int, full: int) -> int:
    """To how many datums a pass of `rows`, at most `full`, is filled up."""
    if length > TINY and full * length <= FILLED:
        return full
    return min(full, power_of_two(rows))


def parts(
    tokens: dict[int, int], full: Callable[[int], int], round_up: Callable[[int], int] = pass_length
) -> list[Part]:
    """Rows by their padded length, the longest first, at most full(length) in a part. `tokens`: of each row.

    The first calls need most memory: what does not fit fails before anything is computed.
    """
    by_length: dict[int, list[int]] = {}
    for row, count in tokens.items():
        by_length.setdefault(round_up(count), []).append(row)
    return [
        Part(rows[start : start + full(length)], full(length), length)
        for length, rows in sorted(by_length.items(), reverse=True)
        for start in range(0, len(rows), full(length))
    ]


def arrays_of(batch: types.PreparedModelPassBatch, ids: list[list[int]], part: Part, adapter: int) -> tuple:
    """What a pass is called with, on the host: shapes (count, length) and (count,)."""

    def table(values: list, dtype: Any, several: int = 1) -> np.ndarray:
        """(filled, length), or with `several` values a token (filled, length, several); zeros where there are none."""
        if several == 1:
            rows = [values[row] for row in part.rows]
            return pad_batch(rows + [[]] * (part.filled - len(rows)), part.length, dtype)
        found = np.zeros((part.filled, part.length, several), dtype)
        for place, row in enumerate(part.rows):
            given = np.asarray(values[row], dtype).reshape(len(ids[row]), -1)
            found[place, : len(given), : given.shape[1]] = given
        return found

    most = power_of_two(max(len(batch.all_targets[row]) // len(ids[row]) for row in part.rows))
    kinds = [types.LOSS_TYPES[batch.all_loss_fns[row]] for row in part.rows]
    more = part.filled - len(kinds)
    mask = table([[1] * len(one) for one in ids], np.int32)
    mask[len(kinds) :, 0] = 1  # rows of nobody have one token
    configs = [batch.all_loss_fn_configs[row] for row in part.rows] + [None] * more
    return (
        table(ids, np.int32),
        mask,
        np.full(part.filled, adapter, np.int32),
        table(batch.all_targets, np.int32, most),
        table(batch.all_token_weights, np.float32, most),
        np.asarray(kinds + kinds[:1] * more, np.int32),
        table(batch.all_sampling_logprobs, np.float32),
        table(batch.all_advantages, np.float32),
        settings(configs, table(batch.all_values, np.float32)),
    )


def model_pass(self: Any, prepared_batch: types.PreparedModelPassBatch, model_pass_fn: Any) -> dict:
    """Replaces JaxBackendImpl._model_pass. Raises ValueError: a loss that JAX does not have, a datum too long."""
    global pass_tokens
    if not prepared_batch.all_model_inputs:
        return {}
    if unknown := set(prepared_batch.all_loss_fns) - types.LOSS_TYPES.keys():
        raise ValueError(f"Loss functions {sorted(unknown)} are not supported by the JAX backend")
    ids = [one.prompt_ids for one in render_model_input(prepared_batch.all_model_inputs)]
    micro_batch, left = self.config.train_micro_batch_size, set(range(len(ids)))
    outputs: list[Any] = [None] * len(ids)
    computed: list[tuple[list[int], Any]] = []
    adapter = self.models[prepared_batch.all_model_ids[0]].adapter_index
    with jax.set_mesh(self.mesh):
        while left:
            part = parts({row: len(ids[row]) for row in left}, lambda length: full_rows(length, micro_batch))[0]
            part = part._replace(filled=filled_rows(len(part.rows), part.length, part.filled))
            inputs = on_devices(self.mesh, arrays_of(prepared_batch, ids, part, adapter))
            try:
                self.accumulated_grads, *found = model_pass_fn(
                    self.accumulated_grads, self.lora_params, self.non_lora_params, *inputs
                )
            except TooLarge:
                if part.filled == 1:
                    raise
                pass_tokens = part.filled * part.length // 2
                continue
            computed.append((part.rows, found))
            left -= set(part.rows)
    for rows, found in computed:
        for row, *values in zip(rows, *jax.device_get(found), strict=False):
            tensors = [tensor(own(value, len(ids[row]), len(prepared_batch.all_targets[row]))) for value in values]
            outputs[row] = dict(zip(("elementwise_loss", "logprobs"), tensors, strict=True))
    return {
        request_id: types.ForwardBackwardOutput(
            loss_fn_output_type="scalar", loss_fn_outputs=outputs[start:end], metrics={}
        )
        for request_id, _, start, end in prepared_batch.request_batch_slices
    }


def on_devices(mesh: Any, arrays: tuple) -> tuple:
    """Rows spread over the devices that each hold a part of the batch."""
    size = mesh.shape["fsdp"]

    def spread(value: np.ndarray) -> jax.Array:
        spec = jax.P("fsdp", *[None] * (value.ndim - 1))
        return jax.device_put(pad_to_fsdp(value, size), jax.NamedSharding(mesh, spec))

    return jax.tree.map(spread, arrays)


def own(values: np.ndarray, tokens: int, targets: int) -> np.ndarray:
    """Of a padded row what its datum asked for: (tokens,), or (tokens, targets of each)."""
    several = targets // tokens
    return values[:tokens] if values.ndim == 1 else values[:tokens, :several] if several > 1 else values[:tokens, 0]


def tensor(values: np.ndarray) -> dict[str, Any]:
    return {"data": values.astype(np.float32).ravel().tolist(), "dtype": "float32", "shape": list(values.shape)}


def apply() -> None:
    backend.JaxBackendImpl._model_pass = model_pass
