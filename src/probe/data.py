"""Fixed training data: one length, so that a server compiles little; ids that every vocabulary has."""

from collections.abc import Sequence

import numpy as np
import tinker

N_TOKENS = 25  # 24 positions in training, 25 as a prompt
PROMPT_TOKENS = 17
NEW_TOKENS = N_TOKENS - PROMPT_TOKENS  # so that prompt and answer together are as long as the rest
LOW_ID, HIGH_ID = 20, 220


def tokens_of(seed: int) -> list[int]:
    """N_TOKENS ids, the same everywhere for one seed."""
    return np.random.default_rng(seed).integers(LOW_ID, HIGH_ID, N_TOKENS).tolist()


TOKENS = tokens_of(0)
PROMPT = tinker.ModelInput.from_ints(TOKENS[:PROMPT_TOKENS])
SEQUENCE = tinker.ModelInput.from_ints(TOKENS)


def datum(tokens: Sequence[int] = TOKENS, **inputs: Sequence[float]) -> tinker.Datum:
    """tokens[:-1] -> tokens[1:], with inputs of the loss as given."""
    tensors = {name: tinker.TensorData(data=list(values), dtype="float32") for name, values in inputs.items()}
    tensors["target_tokens"] = tinker.TensorData(data=list(tokens[1:]), dtype="int64")
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(list(tokens[:-1])), loss_fn_inputs=tensors)


def weighted(weight: float = 1.0, tokens: Sequence[int] = TOKENS) -> tinker.Datum:
    """For cross_entropy, the same weight for every target."""
    return datum(tokens, weights=[weight] * (len(tokens) - 1))


def policy(logprobs: Sequence[float], advantages: Sequence[float] | float, **more: Sequence[float]) -> tinker.Datum:
    """For the policy losses; `logprobs` of the sampling policy, one for each target."""
    n = len(TOKENS) - 1
    values = [advantages] * n if isinstance(advantages, int | float) else list(advantages)
    return datum(TOKENS, logprobs=logprobs, advantages=values, **more)


def still() -> tinker.Datum:
    """For importance_sampling: its gradient is exactly 0."""
    return policy([-1.0] * (len(TOKENS) - 1), 0.0)
