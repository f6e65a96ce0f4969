"""What a training server answers -> checked arrays and metrics under our names."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tinker

from src.errors import BackendError, ServerLost
from src.learning.datums import TrainingSequence

STEP = "optim/server_step"  # steps in the adapter's life so far, of servers that count them
NAMES = {"grad_norm": "optim/grad_norm", "learning_rate": "optim/learning_rate_applied", "optimizer_step": STEP}


def trained_logprobs(sequence: TrainingSequence, output: Mapping[str, tinker.TensorData]) -> np.ndarray:
    """N natural logs, 0 for the first token. Raises BackendError unless there is a finite one for every other token."""
    values = np.asarray(output["logprobs"].to_numpy(), np.float32).ravel()
    n = len(sequence.tokens_T)
    if len(values) != n - 1:
        raise BackendError(f"forward_backward: {len(values)} logprobs for {n} tokens of {sequence.trial_name}")
    if not np.isfinite(values).all():
        raise BackendError(
            "forward_backward: logprobs that are no numbers: the weights have diverged; start a new run with "
            "a lower learning_rate"
        )
    return np.concatenate([np.zeros(1, np.float32), values])


def all_tokens(logprobs: Sequence[float | None], n: int) -> np.ndarray:
    """N logprobs from an answer that leads with None (Tinker) or leaves the first token out (self-hosted)."""
    values = [value for value in logprobs if value is not None]
    if len(values) != n - 1:
        raise BackendError(f"base model logprobs: {len(values)} for {n} tokens")
    return np.array([0.0, *values], np.float32)


def check_rate(rate: float, metrics: Mapping[str, float]) -> None:
    """Raises BackendError when the server says that it applied another learning rate (a rounded one is the same)."""
    applied = metrics.get("optim/learning_rate_applied", rate)
    if not math.isclose(applied, rate, rel_tol=1e-5, abs_tol=1e-12):
        raise BackendError(
            f"optim_step: the server applied learning_rate={applied:g} instead of {rate:g}; "
            "see what it does with python -m src.doctor"
        )


def check_step(last: float | None, metrics: Mapping[str, float]) -> float | None:
    """The server's count of steps now. Raises ServerLost when it is not one more than `last`: restoring mends that."""
    now = metrics.get(STEP)
    if last is not None and now is not None and now != last + 1:
        raise ServerLost(f"optim_step: the server counts {now:g} steps of these weights after {last:g} and one more")
    return now


def metric_name(name: str) -> str:
    """`optim/grad_norm` for the server's `skyrl.ai/grad_norm`; `server/loss_sum` for `loss:sum`."""
    short = name.rsplit("/", 1)[-1].replace(":", "_")
    return NAMES.get(short, f"server/{short}")
