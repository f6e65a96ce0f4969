"""Forward and backward pass of one adapter, in a view of the model that holds no other adapter.

Upstream: skyrl/backends/jax.py, JaxBackendImpl._create_loss_and_grad_fn, AccumulatedGradients, forward_backward.
There a pass holds all adapter slots: where ragged_dot multiplies every row by every slot and masks (as on CPU), one
slot's NaN weights are NaN in every user's result, and time and memory grow with the number of slots.
Here gradients are kept for each model, in float32, and a request whose result is not finite adds nothing to them.
Upstream keeps adapters, and so Adam's moments, in the base weights' dtype: in bfloat16 a step of 1e-4 does not move a
weight of 0.05 at all. Here they are float32; a pass computes with a copy in the base weights' dtype (engine_lora).
"""

# pyright: reportMissingImports=false
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from skyrl.backends.jax import JaxBackendImpl
from skyrl.tinker import types
from skyrl.tinker.loss_fns import LOSS_FUNCTIONS
from skyrl.tx.utils.models import get_dtype
from skyrl.utils.log import logger

from repairs import engine_blocks, engine_lora, engine_losses
from repairs.engine_losses import Settings, settings_like, target_logprobs
from repairs.engine_programs import TooLarge, is_full
from repairs.engine_slots import all_finite, in_dtype, rounded, take_slot, with_slots

NOT_FINITE = (
    "loss, log-probabilities or gradient of this request are not finite (a token id beyond the vocabulary, or an "
    "extreme log-probability or advantage); nothing of it was added to the gradient"
)
Results = dict[str, types.ForwardBackwardOutput | types.ErrorResponse]


@dataclass
class Gradient:
    """What one model has accumulated since its last optimizer step: the sum over `datums` datums."""

    total: nnx.State
    datums: int = 0


def sequence_mean(token_losses_BT: jax.Array, weights_BT: jax.Array) -> jax.Array:
    """Stock loss of each sequence: the weighted mean over its tokens. Returns shape (B,)."""
    return token_losses_BT.sum(axis=-1) / jnp.maximum(weights_BT.sum(axis=-1), 1e-9)


def as_given(sampling_logprobs: jax.Array, _logprobs: jax.Array) -> jax.Array:
    """Stock: a ratio is against what the client says that the sampler gave each token."""
    return sampling_logprobs


def datum_mean(datums: int) -> float:
    """Stock divisor of the summed gradient: the number of datums."""
    return max(datums, 1)


def base_dtype(self: Any) -> jnp.dtype:
    """In which the base weights are, and in which the model computes."""
    return get_dtype(self.model_config.get_config().dtype)


def create_pass(self: Any) -> None:
    """Replaces JaxBackendImpl._create_loss_and_grad_fn; the functions keep the signature that _model_pass calls."""
    dtype = base_dtype(self)
    nnx.update(self.lora_params, in_dtype(self.lora_params, jnp.float32))  # the model's own variables
    self.own_view = with_slots(self.model, 1)
    graphdef, own_lora, _ = nnx.split(self.own_view, self.own_view.is_lora_param, ...)
    self.accumulated_grads = None  # the stock buffer for all slots
    self.gradients = {}
    reduce_losses, samples_of = self.reduce_losses, self.samples_of

    def losses(
        lora, others, ids, mask, targets, weights, kinds, sampling_logprobs, advantages, config: Settings
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        model = nnx.merge(graphdef, rounded(lora, dtype), others)
        adapters = jnp.zeros(ids.shape[0], jnp.int32)
        output = model(ids, attention_mask=mask, adapter_indices=adapters, is_training=True)
        logprobs = target_logprobs(model, output.last_hidden_state, targets, adapters)
        if targets.ndim > ids.ndim:  # one value of a token for all its targets
            sampling_logprobs, advantages = sampling_logprobs[..., None], advantages[..., None]

        sampling_logprobs = samples_of(sampling_logprobs, logprobs)

        def one_sequence(kind, *inputs):
            return jax.lax.switch(kind, LOSS_FUNCTIONS, *inputs)

        token_losses = jax.vmap(one_sequence)(kinds, logprobs, weights, sampling_logprobs, advantages, config)
        return reduce_losses(token_losses, weights).sum(), (logprobs, token_losses)

    def own(lora_params, others, adapters) -> tuple[nnx.State, nnx.State]:
        return take_slot(lora_params, adapters[0]), take_slot(others, adapters[0])

    def forward_backward(pending, lora_params, others, ids, mask, adapters, *batch):
        lora, rest = own(lora_params, others, adapters)
        (_, (logprobs, token_losses)), grads = jax.value_and_grad(losses, has_aux=True)(lora, rest, ids, mask, *batch)
        return jax.tree.map(lambda a, b: a + b.astype(a.dtype), pending, grads), token_losses, logprobs

    def forward(pending, lora_params, others, ids, mask, adapters, *batch):
        lora, rest = own(lora_params, others, adapters)
        _, (logprobs, token_losses) = losses(lora, rest, ids, mask, *batch)
        return pending, token_losses, logprobs

    compile_passes(self, forward_backward, forward, own_lora)


def compile_passes(self: Any, forward_backward: Any, forward: Any, own_lora: nnx.State) -> None:
    """Sets the backend's two pass functions and its zero gradient, with the shardings that upstream gives them."""

    def zeros() -> nnx.State:
        return jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), own_lora)

    if self.config.enforce_eager:
        self._forward_backward_and_accumulate, self._forward, self.zero_gradient = forward_backward, forward, zeros
        return

    def shardings(state: nnx.State) -> Any:
        return jax.tree.map(lambda spec: jax.NamedSharding(self.mesh, spec), nnx.get_partition_spec(state))

    rows = jax.NamedSharding(self.mesh, jax.P("fsdp"))
    table = jax.NamedSharding(self.mesh, jax.P("fsdp", None))
    config = settings_like(rows, table)
    params = (shardings(self.lora_params), shardings(self.non_lora_params))
    batch = (table, table, rows, table, table, rows, table, table, config)
    gradient = shardings(own_lora)
    self.zero_gradient = jax.jit(zeros, out_shardings=gradient)
    self._forward_backward_and_accumulate = jax.jit(
        forward_backward,
        in_shardings=(gradient, *params, *batch),
        out_shardings=(gradient, table, table),
        donate_argnums=(0,),
    )
    self._forward = jax.jit(forward, in_shardings=(None, *params, *batch), out_shardings=(None, table, table))


@jax.jit
def add_if_finite(total: nnx.State, pending: nnx.State) -> tuple[nnx.State, jax.Array]:
    """(total + pending, True), or (total, False) when pending has a value that is not finite."""
    fine = all_finite(pending)
    return jax.tree.map(lambda a, b: jnp.where(fine, a + b, a), total, pending), fine


def is_finite(result: types.ForwardBackwardOutput) -> bool:
    values = (v for output in result.loss_fn_outputs for tensor in output.values() for v in tensor["data"])
    return all(map(math.isfinite, values))


def forward_backward(self: Any, prepared_batch: types.PreparedModelPassBatch) -> Results:
    """Replaces JaxBackendImpl.forward_backward. A request with a result that is not finite fails alone.

    Where the memory is full, it is computed again and keeps less of its layers for the backward pass.
    Raises ValueError when the batch has requests of more than one model (the engine makes one batch a model).
    """
    model_id = only_model(prepared_batch)
    with jax.set_mesh(self.mesh):
        self.accumulated_grads = self.zero_gradient()
    try:
        results = self._model_pass(prepared_batch, self._forward_backward_and_accumulate)
        pending = self.accumulated_grads
    except (TooLarge, RuntimeError) as error:
        if not is_full(error) or not engine_blocks.keep_less():
            raise
        logger.warning(f"passes keep less for their backward pass from now on: {error}")
        known = self.gradients
        self._create_loss_and_grad_fn()
        self.gradients = known
        return forward_backward(self, prepared_batch)
    finally:
        self.accumulated_grads = None
    if all(map(is_finite, results.values())):
        known = self.gradients.get(model_id) or Gradient(self.zero_gradient())
        total, fine = add_if_finite(known.total, pending)
        if fine:
            self.gradients[model_id] = Gradient(total, known.datums + len(prepared_batch.all_model_inputs))
            return results
    if len(results) == 1:
        return {request_id: types.ErrorResponse(error=NOT_FINITE, status="failed") for request_id in results}
    requests = [only_request(prepared_batch, entry) for entry in prepared_batch.request_batch_slices]
    return {key: result for request in requests for key, result in forward_backward(self, request).items()}


def forward(self: Any, prepared_batch: types.PreparedModelPassBatch) -> Results:
    """Replaces JaxBackendImpl.forward; see forward_backward."""
    only_model(prepared_batch)
    results = self._model_pass(prepared_batch, self._forward)
    failed = types.ErrorResponse(error=NOT_FINITE, status="failed")
    return {request_id: result if is_finite(result) else failed for request_id, result in results.items()}


def only_model(batch: types.PreparedModelPassBatch) -> str:
    models = set(batch.all_model_ids)
    if len(models) != 1:
        raise ValueError(f"one model pass is for one model, got {len(models)}")
    return models.pop()


def only_request(batch: types.PreparedModelPassBatch, entry: tuple[str, str, int, int]) -> types.PreparedModelPassBatch:
    """The batch with nothing but the request of this entry of request_batch_slices."""
    request_id, model_id, start, end = entry
    lists = {name: getattr(batch, name)[start:end] for name in type(batch).model_fields if name.startswith("all_")}
    return batch.model_copy(update=lists | {"request_batch_slices": [(request_id, model_id, 0, end - start)]})


def apply() -> None:
    if JaxBackendImpl._create_loss_and_grad_fn is create_pass:
        return
    JaxBackendImpl.reduce_losses = staticmethod(sequence_mean)
    JaxBackendImpl.gradient_divisor = staticmethod(datum_mean)
    JaxBackendImpl.samples_of = staticmethod(as_given)
    JaxBackendImpl._create_loss_and_grad_fn = create_pass
    JaxBackendImpl.forward_backward = forward_backward
    JaxBackendImpl.forward = forward
    engine_lora.apply()
    engine_losses.apply()
    from repairs import engine_own_step  # which imports this module; a step needs the gradients that a pass keeps here

    engine_own_step.apply()
