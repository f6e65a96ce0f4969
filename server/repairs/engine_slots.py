"""Adapter slots of skyrl's LoRA models: one slot taken out or put back, a second view of a model with its own slots.

skyrl keeps every adapter of a parameter in one array, shape (slots, ...) or (layers, slots, ...) for stacked layers.
A state or slot here is an nnx.State of such arrays; a slot is a state with exactly one adapter.
"""

# pyright: reportMissingImports=false
import jax
import jax.numpy as jnp
from flax import nnx
from skyrl.tx.layers.connectors import is_connector_path
from skyrl.tx.utils.models import is_stacked_path

MATRICES = ("lora_A", "lora_B")
PER_ADAPTER = (*MATRICES, "lora_scaling", "lora_ranks")


def has_slots(path: tuple) -> bool:
    """Whether the array at this path of a state has one entry for each adapter."""
    return path[-2].key in PER_ADAPTER or is_connector_path(path)


def slot_axis(path: tuple) -> int:
    return 1 if is_stacked_path(path) else 0


def take_slot(state: nnx.State, index: jax.Array | int) -> nnx.State:
    """The state with nothing but the adapter at `index`; arrays without adapters are passed through. Traceable."""

    def take(path: tuple, value: jax.Array) -> jax.Array:
        if not has_slots(path):
            return value
        return jax.lax.dynamic_index_in_dim(value, index, slot_axis(path), keepdims=True)

    return jax.tree.map_with_path(take, state)


def put_slot(state: nnx.State, index: jax.Array | int, slot: nnx.State) -> nnx.State:
    """The state with the adapter at `index` replaced by `slot`'s. Traceable."""

    def put(path: tuple, value: jax.Array, new: jax.Array) -> jax.Array:
        if not has_slots(path):
            return value
        return jax.lax.dynamic_update_slice_in_dim(value, new.astype(value.dtype), index, slot_axis(path))

    return jax.tree.map_with_path(put, state, slot)


def all_finite(state: nnx.State) -> jax.Array:
    """Whether no array of the state has a NaN or an infinity. Traceable."""
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]))


take, put, slot_is_finite = jax.jit(take_slot), jax.jit(put_slot), jax.jit(all_finite)


def in_dtype(state: nnx.State, dtype: jnp.dtype) -> nnx.State:
    """The state with every array in this dtype. Traceable."""
    return jax.tree.map(lambda value: value.astype(dtype), state)


def rounded(state: nnx.State, dtype: jnp.dtype) -> nnx.State:
    """The state as a pass takes it: LoRA matrices as they are, which engine_lora rounds, all else in this dtype."""
    return jax.tree.map_with_path(lambda path, value: value if path[-2].key in MATRICES else value.astype(dtype), state)


def slots_of(model: nnx.Module) -> nnx.State:
    """The model's own variables that have slots, base weights left out."""
    return nnx.state(model, lambda path, _value: path[-1] in PER_ADAPTER or is_connector_path(path))


def with_slots(model: nnx.Module, count: int) -> nnx.Module:
    """A second model on the same base weights (not copied) with `count` slots of its own, each like slot 0."""
    graphdef, state = nnx.split(model)

    def resize(path: tuple, value: jax.Array) -> jax.Array:
        if not has_slots(path):
            return value
        resized = jnp.take(value, jnp.zeros(count, jnp.int32), axis=slot_axis(path))
        return jax.device_put(resized, value.sharding)

    view = nnx.merge(graphdef, jax.tree.map_with_path(resize, state))
    for _, module in nnx.iter_graph(view):
        if isinstance(module, nnx.Module) and getattr(module, "max_lora_adapters", 0):
            module.max_lora_adapters = count
    return view
