"""Passes and sampling waves have few shapes, since JAX compiles a program for each: 3 to 30 s.

Upstream: skyrl/backends/jax.py, JaxBackendImpl._model_pass computes the last micro batch with the datums that it has;
skyrl/tx/utils/models.py, round_up_seq_len has five lengths up to 128 tokens and two for each power of two beyond.
Here every micro batch is full: rows of one token without weight fill it up. They add exactly 0 to loss and gradient.
Lengths are powers of two from SHORTEST on, and from FINE on also the middle between two. Passes of at most TINY tokens
(a probe makes a hundred of them) are not filled up further than to a power of two.
"""

# pyright: reportMissingImports=false
import copy
from typing import Any

from skyrl.backends import jax as backend
from skyrl.tinker import types
from skyrl.tx.utils import models

TINY = 32  # tokens; no conversation of a trial is that short
SHORTEST = 128  # tokens
FINE = 1024  # tokens; beyond, the padding to a power of two costs more than a program
ROOM_STEP = 64  # tokens; prompt bucket and answer limit determine the room already, so it needs no bucket
FILLING = types.ModelInput(chunks=[types.EncodedTextChunk(tokens=[0])])
REPEATED = ("all_model_ids", "all_loss_fns", "all_loss_fn_configs")  # not computed with, but looked up


def power_of_two(number: int) -> int:
    """The least power of two from `number` on; `number` is at least 1."""
    return 1 << (number - 1).bit_length()


def prompt_length(tokens: int) -> int:
    """Replaces round_up_seq_len for prompts."""
    power = max(SHORTEST, power_of_two(max(1, tokens)))
    middle = power * 3 // 4
    return middle if middle > FINE and tokens <= middle else power


def pass_length(tokens: int) -> int:
    """Replaces round_up_seq_len for passes."""
    return TINY if tokens <= TINY else prompt_length(tokens)


def lengths(most: int) -> list[int]:
    """Every prompt_length up to `most` tokens."""
    found: list[int] = []
    while (length := prompt_length(found[-1] + 1 if found else 1)) <= most:
        found.append(length)
    return found


def room_for(tokens: int) -> int:
    """Replaces round_up_seq_len for the key-value cache: tokens of prompt bucket and answer."""
    return -(-tokens // ROOM_STEP) * ROOM_STEP


def pass_rows(rows: int, tokens: int, micro_batch: int) -> int:
    """To how many datums a pass of `rows`, the longest with `tokens`, is filled up. micro_batch 0: no limit."""
    if micro_batch <= 0:
        return power_of_two(rows)
    if tokens <= TINY and rows < micro_batch:
        return min(micro_batch, power_of_two(rows))
    return -(-rows // micro_batch) * micro_batch


def filled(batch: types.PreparedModelPassBatch, count: int) -> types.PreparedModelPassBatch:
    """The batch with `count` more rows, which belong to no request."""
    added = {"all_model_inputs": FILLING} | {name: getattr(batch, name)[0] for name in REPEATED}
    names = [name for name in type(batch).model_fields if name.startswith("all_")]
    empty: list[float] = []  # becomes zeros: target 0, weight 0, advantage 0
    return batch.model_copy(update={name: getattr(batch, name) + [added.get(name, empty)] * count for name in names})


def tokens_of(model_input: types.ModelInput) -> int:
    return sum(len(chunk.tokens) for chunk in model_input.chunks if isinstance(chunk, types.EncodedTextChunk))


def with_full_micro_batches(stock_pass: Any) -> Any:
    def model_pass(self: Any, prepared_batch: types.PreparedModelPassBatch, model_pass_fn: Any) -> dict:
        """Wraps JaxBackendImpl._model_pass."""
        backend.round_up_seq_len = pass_length
        if inputs := prepared_batch.all_model_inputs:
            rows = pass_rows(len(inputs), max(map(tokens_of, inputs)), self.config.train_micro_batch_size)
            prepared_batch = filled(prepared_batch, rows - len(inputs))
        return stock_pass(self, prepared_batch, model_pass_fn)

    return model_pass


def with_few_waves(stock_sample: Any) -> Any:
    def sample(self: Any, prepared_batch: types.PreparedSampleBatch) -> dict:
        """Wraps JaxBackendImpl.sample: without a limit, seats are a power of two."""
        backend.round_up_seq_len = prompt_length
        rows = len(prepared_batch.all_model_inputs)
        if rows and self.config.sample_max_num_sequences <= 0:
            self = copy.copy(self)
            self.config = self.config.model_copy(update={"sample_max_num_sequences": power_of_two(rows)})
        return stock_sample(self, prepared_batch)

    return sample


def apply() -> None:
    models.round_up_seq_len = room_for
    backend.JaxBackendImpl._model_pass = with_full_micro_batches(backend.JaxBackendImpl._model_pass)
    backend.JaxBackendImpl.sample = with_few_waves(backend.JaxBackendImpl.sample)
