"""The loss is the sum over tokens and datums, as Tinker's is, and is reported as the metric loss:sum.

Upstream: skyrl/backends/jax.py, loss_for_lora in JaxBackendImpl._create_loss_and_grad_fn divides each datum's loss by
the sum of its weights, AccumulatedGradients.get_mean divides the gradient by the number of datums. So weights times
ten, or a datum sent twice, change nothing; long sequences count less for each token; calls that accumulate average.
Applies engine_own_step, which has the places where upstream divides.
"""

# pyright: reportMissingImports=false
import math
from typing import Any

import jax
from skyrl.backends.jax import JaxBackendImpl
from skyrl.tinker import types

from repairs import engine_own_step

stock_model_pass = JaxBackendImpl._model_pass


def sequence_sum(token_losses_BT: jax.Array, _weights_BT: jax.Array) -> jax.Array:
    """Loss of each sequence; the tokens' losses are weighted already. Returns shape (B,)."""
    return token_losses_BT.sum(axis=-1)


def undivided(_datums: int) -> float:
    return 1.0


def model_pass(
    self: Any, prepared_batch: types.PreparedModelPassBatch, model_pass_fn: Any
) -> dict[str, types.ForwardBackwardOutput | types.ErrorResponse]:
    """Wraps JaxBackendImpl._model_pass: adds the metric."""
    results = stock_model_pass(self, prepared_batch, model_pass_fn)
    for result in results.values():
        losses = (math.fsum(output["elementwise_loss"]["data"]) for output in result.loss_fn_outputs)
        result.metrics["loss:sum"] = sum(losses)
    return results


def apply() -> None:
    engine_own_step.apply()
    JaxBackendImpl.reduce_losses = staticmethod(sequence_sum)
    JaxBackendImpl.gradient_divisor = staticmethod(undivided)
    JaxBackendImpl._model_pass = model_pass
