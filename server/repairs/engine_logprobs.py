"""Log-probabilities are computed in float32, whatever the dtype of the logits.

Upstream: skyrl/tx/utils/logits_processor.py, LogitsProcessorMixin.logits_to_logprobs computes in the logits' dtype. In
bfloat16 a log-probability between -8 and -16, and the normaliser before it, is rounded to a multiple of 1/16: 0.03 nats
on average, in training as in sampling, and most of the difference between two engines.
"""

# pyright: reportMissingImports=false
import jax
import jax.numpy as jnp
from skyrl.tx.utils.logits_processor import LogitsProcessorMixin

stock_logprobs = LogitsProcessorMixin.logits_to_logprobs


def logits_to_logprobs(logits: jax.Array, target_ids: jax.Array) -> jax.Array:
    """Wraps LogitsProcessorMixin.logits_to_logprobs. (..., V) and (...) -> (...) in float32."""
    return stock_logprobs(logits.astype(jnp.float32), target_ids)


def apply() -> None:
    LogitsProcessorMixin.logits_to_logprobs = staticmethod(logits_to_logprobs)
