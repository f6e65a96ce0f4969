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


def sequence_sum(token_losses_BT: jax.Array, _weights_BT: jax.Array) -> jax.Array:
    """Loss of each sequence; the tokens' losses are weighted already. Returns shape (B,)."""
    return token_losses_BT.sum(axis=-1)


def undivided(_datums: int) -> float:
    return 1.0


def with_metric(stock: Any) -> Any:
    def run(
        self: Any, prepared_batch: types.PreparedModelPassBatch
    ) -> dict[str, types.ForwardBackwardOutput | types.ErrorResponse]:
        """Wraps JaxBackendImpl.forward_backward and forward: adds the metric."""
        results = stock(self, prepared_batch)
        for result in results.values():
            if isinstance(result, types.ForwardBackwardOutput):
                losses = (math.fsum(output["elementwise_loss"]["data"]) for output in result.loss_fn_outputs)
                result.metrics["loss:sum"] = sum(losses)
        return results

    return run


def apply() -> None:
    engine_own_step.apply()
    JaxBackendImpl.reduce_losses = staticmethod(sequence_sum)
    JaxBackendImpl.gradient_divisor = staticmethod(undivided)
    JaxBackendImpl.forward_backward = with_metric(JaxBackendImpl.forward_backward)
    JaxBackendImpl.forward = with_metric(JaxBackendImpl.forward)
