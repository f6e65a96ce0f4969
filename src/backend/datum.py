"""Training sequence -> tinker.Datum, checked here because the self-hosted server accepts malformed ones silently."""

from collections.abc import Sequence

import numpy as np
import tinker

from src.backend.contract import Contract
from src.errors import UserError
from src.learning.datums import TrainingSequence

KINDS = {"tokens": "i", "mask": "b", "logprobs": "f", "advantages": "f"}  # numpy's dtype.kind


def build_datums(
    sequences_D: Sequence[TrainingSequence], contract: Contract, vocab_size: int, max_context: int | None
) -> list[tinker.Datum]:
    """One optimizer step's datums. Raises ValueError that names a malformed sequence: a bug in this program.

    `max_context`: the server's, not the run's, which may be lower than when the trials were sampled; None = unknown.
    Raises UserError for a sequence beyond it. Each datum has N-1 positions: input tokens[:-1], target tokens[1:],
    and mask, logprobs, advantages of the targets.
    """
    for index, sequence in enumerate(sequences_D):
        check_sequence(sequence, index, vocab_size)
        if max_context is not None and len(sequence.tokens_T) > max_context:
            raise UserError(
                f"context_limit: trial {sequence.trial_name} has {len(sequence.tokens_T)} tokens, the server takes at "
                f"most {max_context}; resume on a server that takes as many as before, or start a new run"
            )
    return [_datum(s, _compensation(s, len(sequences_D), contract), contract) for s in sequences_D]


def check_sequence(sequence: TrainingSequence, index: int, vocab_size: int) -> None:
    """Lengths, types, ranges. Raises ValueError."""
    where = f"sequence {index} ({sequence.trial_name})"
    n = len(sequence.tokens_T)
    for name, kind in KINDS.items():
        array = getattr(sequence, f"{name}_T")
        if array.shape != (n,) or array.dtype.kind != kind:
            raise ValueError(f"{where}: {array.shape} {name} of {array.dtype} for {n} tokens")
    if n < 2 or not sequence.mask_T[1:].any() or sequence.mask_T[0]:
        raise ValueError(f"{where}: needs a prompt and at least one sampled token")
    if sequence.tokens_T.min() < 0 or sequence.tokens_T.max() >= vocab_size:
        token = min(sequence.tokens_T.min(), 0) or sequence.tokens_T.max()
        raise ValueError(f"{where}: token {token} is outside the vocabulary of {vocab_size}")
    if not (np.isfinite(sequence.logprobs_T).all() and np.isfinite(sequence.advantages_T).all()):
        raise ValueError(f"{where}: logprobs and advantages must be finite")
    if sequence.logprobs_T.max() > 1e-3:
        raise ValueError(f"{where}: a logprob of {sequence.logprobs_T.max()} is above 0")
    if sequence.advantages_T[~sequence.mask_T].any():
        raise ValueError(f"{where}: advantage on a token that was not sampled")


def _compensation(sequence: TrainingSequence, n_datums: int, contract: Contract) -> float:
    """What an averaging server divides by: policy losses are linear in advantages, its gradient is then the sum's."""
    return float(sequence.mask_T.sum()) * n_datums if contract.reduction == "example_mean" else 1.0


def _datum(sequence: TrainingSequence, scale: float, contract: Contract) -> tinker.Datum:
    inputs = {
        "target_tokens": sequence.tokens_T[1:].astype(np.int64),
        "logprobs": sequence.logprobs_T[1:].astype(np.float32),
        "advantages": (sequence.advantages_T[1:] * scale).astype(np.float32),
    }
    if contract.reduction == "example_mean":  # what that server divides by; others would ignore or refuse it
        inputs["weights"] = sequence.mask_T[1:].astype(np.float32)
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(sequence.tokens_T[:-1].tolist()), loss_fn_inputs=inputs)
