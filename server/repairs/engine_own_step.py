"""Optimizer step and checkpoint of one adapter, on that adapter's slice of the parameters.

Upstream: skyrl/backends/jax.py, JaxBackendImpl.create_model, optim_step, _extract_checkpoint_data. There each model's
optimizer runs over all adapter slots: weight decay shrinks everybody's adapters, a NaN reaches everybody's weights,
the moments take the memory of all slots, and each model compiles a step of its own.
Here a step whose gradient or new weights are not finite is refused and leaves weights and moments as they were.
Checkpoints keep upstream's format.
"""

# pyright: reportMissingImports=false
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from skyrl.backends.jax import JaxBackendImpl
from skyrl.tinker import types
from skyrl.tx.layers.connectors import is_connector_path
from skyrl.tx.layers.lora import init_lora_adapter
from skyrl.tx.utils.models import extract_adapter_state, insert_adapter_state
from skyrl.utils.log import logger

from repairs import engine_own_pass
from repairs.engine_own_pass import Gradient
from repairs.engine_programs import quickly
from repairs.engine_slots import all_finite, put, put_slot, slots_of, take, take_slot

REFUSED = "gradient is not finite: step refused, weights unchanged, accumulated gradient dropped"
# One object, so that models share one compiled step. float32: in bfloat16 a beta2 of 0.999 is 1, and weights become NaN
ADAM = optax.inject_hyperparams(optax.adamw, hyperparam_dtype=jnp.float32)(learning_rate=0.0)
HYPERPARAMETERS = {"learning_rate": "learning_rate", "b1": "beta1", "b2": "beta2", "eps": "eps"} | {
    "weight_decay": "weight_decay"
}


def free_slot(self: Any) -> int:
    """Slot 0 is the base model's. Raises ValueError when every other one is taken."""
    taken = {model.adapter_index for model in self.models.values()}
    for index in range(1, self.config.max_lora_adapters):
        if index not in taken:
            return index
    raise ValueError(f"Maximum number of LoRA adapters ({self.config.max_lora_adapters}) reached")


def create_model(self: Any, model_id: str, lora_config: types.LoraConfig, model_role: str = "policy") -> None:
    """Replaces JaxBackendImpl.create_model. Raises ValueError: no slot is free, or the rank is out of range."""
    if model_role != "policy":
        raise ValueError(f"JaxBackend only supports model_role='policy', got {model_role!r}")
    index = free_slot(self)
    if not 0 < lora_config.rank <= self.config.max_lora_rank:
        raise ValueError(f"LoRA rank {lora_config.rank} must be between 1 and {self.config.max_lora_rank}")
    with jax.set_mesh(self.mesh):
        self.optimizers[model_id] = nnx.Optimizer(self.own_view, ADAM, wrt=self.own_view.is_lora_param)
        self.fresh_slot = getattr(self, "fresh_slot", None) or fresh_slots(self.own_view)
        fresh = self.fresh_slot(lora_config)
        nnx.update(self.model, put(slots_of(self.model), index, fresh))
    self.models[model_id] = types.ModelMetadata(adapter_index=index, lora_config=lora_config)
    logger.info(f"Created model {model_id} with adapter_index={index}, config={lora_config}")


def settings_of(config: types.LoraConfig) -> frozenset:
    """All but the seed, for which no program of its own is compiled."""
    return frozenset(config.model_dump(exclude={"seed"}).items())


def fresh_slots(view: nnx.Module) -> Callable[[types.LoraConfig], nnx.State]:
    """skyrl's init_lora_adapter as one program, which gives the slot of a `view` that has one.

    Done as it is, it compiles more than a hundred small programs.
    """
    graphdef, state = nnx.split(view)

    @partial(jax.jit, static_argnums=2, compiler_options=quickly())
    def fresh_slot(state: nnx.State, key: jax.Array, settings: frozenset) -> nnx.State:
        one = nnx.merge(graphdef, state)
        init_lora_adapter(one, 0, types.LoraConfig.model_construct(**dict(settings) | {"seed": key}))
        return slots_of(one)

    return lambda config: fresh_slot(state, jax.random.key(config.seed), settings_of(config))


def delete_model(self: Any, model_id: str) -> None:
    """Replaces JaxBackendImpl.delete_model; the slot keeps its values until the next model takes it."""
    if model_id not in self.models:
        raise ValueError(f"Model {model_id} not found")
    for kept in (self.optimizers, self.models):
        del kept[model_id]
    self.gradients.pop(model_id, None)
    logger.info(f"Deleted model {model_id}")


@nnx.jit
def update_slot(
    optimizer: nnx.Optimizer,
    lora_params: nnx.State,
    index: jax.Array,
    gradient: nnx.State,
    divisor: jax.Array,
    clip_norm: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One AdamW step of the adapter at `index`, in place. clip_norm 0: no clipping.

    Returns (global norm before clipping, its part in the mHC connectors, whether the step was taken).
    """
    mean = jax.tree.map(lambda g: g / divisor, gradient)
    norm = optax.global_norm(mean)
    connectors = jax.tree.map_with_path(lambda path, g: g if is_connector_path(path) else jnp.zeros_like(g), mean)
    scale = jnp.where((clip_norm > 0) & (norm > clip_norm), clip_norm / norm, 1.0)
    weights = take_slot(lora_params, index)
    clipped = jax.tree.map(lambda g, w: (g * scale).astype(w.dtype), mean, weights)
    old_weights, old_state = jax.tree.map(lambda x: x, (weights, nnx.state(optimizer)))
    optimizer.update(weights, clipped)
    fine = jnp.isfinite(norm) & all_finite(weights)

    def choose(new: nnx.State, old: nnx.State) -> nnx.State:
        return jax.tree.map(lambda a, b: jnp.where(fine, a, b), new, old)

    nnx.update(optimizer, choose(nnx.state(optimizer), old_state))
    nnx.update(lora_params, put_slot(lora_params, index, choose(weights, old_weights)))
    return norm, optax.global_norm(connectors), fine


def optim_step(
    self: Any, model_id: str, request_data: types.OptimStepInput
) -> types.OptimStepOutput | types.ErrorResponse:
    """Replaces JaxBackendImpl.optim_step."""
    adam = request_data.adam_params
    optimizer = self.optimizers[model_id]
    for name, field in HYPERPARAMETERS.items():
        variable = optimizer.opt_state.hyperparams[name]
        variable[...] = jnp.asarray(getattr(adam, field), variable.dtype)
    gradient = self.gradients.pop(model_id, None)
    if gradient is None:
        logger.warning(f"No accumulated gradients for model {model_id}; applying step with zero gradients")
        gradient = Gradient(self.zero_gradient())
    with jax.set_mesh(self.mesh):
        norm, connector_norm, fine = update_slot(
            optimizer,
            self.lora_params,
            jnp.int32(self.models[model_id].adapter_index),
            gradient.total,
            jnp.float32(self.gradient_divisor(gradient.datums)),
            jnp.float32(getattr(adam, "grad_clip_norm", 0.0)),
        )
    if not fine:
        return types.ErrorResponse(error=REFUSED, status="failed")
    metrics = {
        "skyrl.ai/grad_norm": norm.item(),
        "skyrl.ai/learning_rate": adam.learning_rate,
        "skyrl.ai/optimizer_step": float(optimizer.step.item()),  # of the adapter's life, saved and restored with it
    }
    if self.config.mhc_expansion_rate > 1:
        metrics["skyrl.ai/mhc_gradient_norm"] = connector_norm.item()
    logger.info(f"Applied optimizer step for model {model_id}, metrics={metrics}")
    return types.OptimStepOutput(metrics=metrics)


def extract_checkpoint_data(self: Any, model_id: str) -> dict:
    """Replaces JaxBackendImpl._extract_checkpoint_data: same tree, same shapes (rank-trimmed, no adapter axis)."""
    model = self.models[model_id]
    rank = model.lora_config.rank
    return {
        "lora_weights": extract_adapter_state(0, take(self.lora_params, model.adapter_index), rank),
        "optimizer_state": extract_adapter_state(0, nnx.state(self.optimizers[model_id]), rank),
        "lora_config": model.lora_config.model_dump(),
    }


def insert_checkpoint_data(self: Any, model_id: str, checkpoint_data: dict, load_optimizer: bool) -> None:
    """Replaces JaxBackendImpl._insert_checkpoint_data. Raises ValueError when the ranks differ."""
    model = self.models[model_id]
    rank = checkpoint_data["lora_config"]["rank"]
    if model.lora_config.rank != rank:
        raise ValueError(
            f"Rank mismatch: checkpoint has rank {rank}, model configured with rank {model.lora_config.rank}"
        )
    weights = take(self.lora_params, model.adapter_index)
    insert_adapter_state(0, weights, checkpoint_data["lora_weights"], rank)
    nnx.update(self.lora_params, put(self.lora_params, model.adapter_index, weights))
    if load_optimizer:
        state = nnx.state(self.optimizers[model_id])
        saved = jax.tree.map(lambda new, old: new.astype(old.dtype), checkpoint_data["optimizer_state"], state)
        insert_adapter_state(0, state, saved, rank)


def apply() -> None:
    engine_own_pass.apply()
    JaxBackendImpl.create_model = create_model
    JaxBackendImpl.delete_model = delete_model
    JaxBackendImpl.optim_step = optim_step
    JaxBackendImpl._extract_checkpoint_data = extract_checkpoint_data
    JaxBackendImpl._insert_checkpoint_data = insert_checkpoint_data
