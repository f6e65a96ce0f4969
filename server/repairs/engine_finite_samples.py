"""A sample whose log-probabilities are not finite is an error of its request.

Upstream: skyrl/backends/jax.py, JaxBackendImpl.sample passes NaN on as a result. It is no JSON: the client gets a 500
and retries for minutes.
"""

# pyright: reportMissingImports=false
import math
from typing import Any

from skyrl.backends.jax import JaxBackendImpl
from skyrl.tinker import types

NOT_FINITE = "the model's log-probabilities are not finite (a token id beyond the vocabulary?)"


def is_finite(result: types.SampleOutput) -> bool:
    prompt = [value for value in result.prompt_logprobs or [] if value is not None]
    return all(map(math.isfinite, [*prompt, *(value for sequence in result.sequences for value in sequence.logprobs)]))


def checked(stock_sample: Any) -> Any:
    def sample(self: Any, prepared_batch: types.PreparedSampleBatch) -> dict:
        """Wraps JaxBackendImpl.sample."""
        results = stock_sample(self, prepared_batch)
        failed = types.ErrorResponse(error=NOT_FINITE, status="failed")
        return {
            request_id: failed if isinstance(result, types.SampleOutput) and not is_finite(result) else result
            for request_id, result in results.items()
        }

    return sample


def apply() -> None:
    JaxBackendImpl.sample = checked(JaxBackendImpl.sample)
