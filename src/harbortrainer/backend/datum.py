"""Builds the datums of a step, and checks them and the server's answers: it accepts malformed datums silently."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tinker

from harbortrainer.backend.contract import Contract
from harbortrainer.commands import command
from harbortrainer.errors import BackendError, ServerLost, UserError
from harbortrainer.learning.datums import TrainingSequence

CROSS_ENTROPY = "cross_entropy"
KINDS = {"tokens": "i", "mask": "b", "logprobs": "f", "advantages": "f"}  # numpy's dtype.kind
STEP = "optim/server_step"  # optimizer steps of this adapter so far, from servers that count them
NAMES = {"grad_norm": "optim/grad_norm", "learning_rate": "optim/learning_rate_applied", "optimizer_step": STEP}


def build_datums(
    sequences_D: Sequence[TrainingSequence],
    loss_fn: str,
    contract: Contract,
    vocab_size: int,
    max_context: int | None,
) -> list[tinker.Datum]:
    """Return one optimizer step's datums. Raises ValueError naming a malformed sequence: a bug in this program.

    `max_context`: the server's; the run's may have been higher when the trials were sampled. None = unknown. Raises
    UserError for a sequence beyond it. Each datum has N-1 positions: input tokens[:-1], target tokens[1:], and mask,
    logprobs, advantages of the targets. For cross_entropy the advantages are the targets' weights.
    """
    for index, sequence in enumerate(sequences_D):
        check_sequence(sequence, index, vocab_size)
        if max_context is not None and len(sequence.tokens_T) > max_context:
            raise UserError(
                f"context_limit: trial {sequence.trial_name} has {len(sequence.tokens_T)} tokens, the server takes at "
                f"most {max_context}; resume on a server that takes as many as before, or start a new run"
            )
    if loss_fn == CROSS_ENTROPY:
        return [_weighted(sequence) for sequence in sequences_D]
    # policy losses are linear in advantages: scaled so, an averaging server's gradient is the sum's
    averages, n = contract.reduction == "example_mean", len(sequences_D)
    return [_datum(s, float(s.mask_T.sum()) * n if averages else 1.0, contract) for s in sequences_D]


def check_sequence(sequence: TrainingSequence, index: int, vocab_size: int) -> None:
    """Raises ValueError for wrong lengths, types or values."""
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
    observed_T = np.zeros(n, np.bool_) if sequence.observed_T is None else sequence.observed_T != 0
    if observed_T.shape != (n,) or observed_T[0] or (observed_T & sequence.mask_T).any():
        raise ValueError(f"{where}: a token is observed and sampled, or is the first")
    if (highest := sequence.logprobs_T[~observed_T].max()) > 1e-3:
        raise ValueError(f"{where}: a logprob of {highest} is above 0")
    if sequence.advantages_T[~(sequence.mask_T | observed_T)].any():
        raise ValueError(f"{where}: advantage on a token that was neither sampled nor observed")


def _datum(sequence: TrainingSequence, scale: float, contract: Contract) -> tinker.Datum:
    inputs = {
        "target_tokens": sequence.tokens_T[1:].astype(np.int64),
        "logprobs": sequence.logprobs_T[1:].astype(np.float32),
        "advantages": (sequence.advantages_T[1:] * scale).astype(np.float32),
    }
    if contract.reduction == "example_mean":  # that server divides by them; others ignore or refuse them
        inputs["weights"] = sequence.mask_T[1:].astype(np.float32)
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(sequence.tokens_T[:-1].tolist()), loss_fn_inputs=inputs)


def _weighted(sequence: TrainingSequence) -> tinker.Datum:
    """A datum whose loss is - sum over targets of (advantage + weight of an observation) * logprob."""
    weights_T = sequence.advantages_T if sequence.observed_T is None else sequence.advantages_T + sequence.observed_T
    inputs = {
        "target_tokens": sequence.tokens_T[1:].astype(np.int64),
        "weights": weights_T[1:].astype(np.float32),
    }
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(sequence.tokens_T[:-1].tolist()), loss_fn_inputs=inputs)


def trained_logprobs(sequence: TrainingSequence, output: Mapping[str, tinker.TensorData]) -> np.ndarray:
    """Return N natural logs, 0 for the first token. Raises BackendError unless all others are present and finite."""
    values = np.asarray(output["logprobs"].to_numpy(), np.float32).ravel()
    n = len(sequence.tokens_T)
    if len(values) != n - 1:
        raise BackendError(f"forward_backward: {len(values)} logprobs for {n} tokens of {sequence.trial_name}")
    if not np.isfinite(values).all():
        raise BackendError(
            "forward_backward: logprobs that are not finite: the weights have diverged; start a new run with "
            "a lower learning_rate"
        )
    return np.concatenate([np.zeros(1, np.float32), values])


def all_tokens(logprobs: Sequence[float | None], n: int) -> np.ndarray:
    """Return N logprobs, 0 for the first;

    Tinker answers None for the first token, the self-hosted server leaves it out.
    """
    values = [value for value in logprobs if value is not None]
    if len(values) != n - 1:
        raise BackendError(f"logprobs of given tokens: {len(values)} for {n} tokens")
    return np.array([0.0, *values], np.float32)


def check_rate(rate: float, metrics: Mapping[str, float]) -> None:
    """Raises BackendError when the server reports that it applied another learning rate than `rate`, rounding aside."""
    applied = metrics.get("optim/learning_rate_applied", rate)
    if not math.isclose(applied, rate, rel_tol=1e-5, abs_tol=1e-12):
        raise BackendError(
            f"optim_step: the server applied learning_rate={applied:g} instead of {rate:g}; "
            f"see what it does with {command('doctor')}"
        )


def check_step(last: float | None, metrics: Mapping[str, float]) -> float | None:
    """Get the server's count of steps. Raises ServerLost unless it is one more than `last`; restoring repairs that."""
    now = metrics.get(STEP)
    if last is not None and now is not None and now != last + 1:
        raise ServerLost(f"optim_step: the server counts {now:g} steps of these weights after {last:g} and one more")
    return now


def metric_name(name: str) -> str:
    """`optim/grad_norm` for the server's `skyrl.ai/grad_norm`; `server/loss_sum` for `loss:sum`."""
    short = name.rsplit("/", 1)[-1].replace(":", "_")
    return NAMES.get(short, f"server/{short}")
