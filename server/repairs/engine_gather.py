"""One adapter, from the device to the host in one program and one transfer.

Upstream: skyrl/tx/utils/models.py, save_safetensors runs on the model on the device: it slices every parameter of each
layer, base weights too (8 GB for 4 billion parameters), and copies 500 small arrays one after another.
Here the same function runs on a model of the same structure on the host, whose base weights have no memory.
"""

# pyright: reportMissingImports=false
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from skyrl.tinker import types
from skyrl.tx.layers.connectors import is_connector_path
from skyrl.tx.utils import models

from repairs.engine_own_pass import base_dtype
from repairs.engine_slots import MATRICES, all_finite, slots_of, take_slot

PREFIX = "base_model.model."  # of every tensor's name


@dataclass(frozen=True)
class Adapter:
    """`exact`: a model on the host with one slot, in float32; `rounded`: the same as the device computes with it."""

    config: types.LoraConfig
    exact: nnx.Module
    rounded: nnx.Module
    is_finite: bool


def turned(path: tuple, value: Any) -> Any:
    """A matrix as files have it, [out, in], and back."""
    return value.swapaxes(-1, -2) if path[-2].key in MATRICES else value


def exported(slots: nnx.State, index: jax.Array, dtypes: tuple[Any, ...]) -> tuple[list[nnx.State], jax.Array]:
    """The adapter at `index` in each of these dtypes, matrices turned; whether it is finite."""
    own = take_slot(slots, index)
    flipped = jax.tree.map_with_path(turned, own)
    return [jax.tree.map(lambda value, dtype=dtype: value.astype(dtype), flipped) for dtype in dtypes], all_finite(own)


_export = jax.jit(exported, static_argnames="dtypes")


def gather(self: Any, model_id: str, to_sample: bool) -> Adapter:
    """`self`: the JaxBackendImpl. `rounded` is another model than `exact` only with `to_sample`."""
    lora = self.models[model_id]
    dtypes = (jnp.float32, base_dtype(self)) if to_sample else (jnp.float32,)
    states, finite = jax.device_get(_export(slots_of(self.model), lora.adapter_index, tuple(dict.fromkeys(dtypes))))
    hosts = [on_host(self.model, state) for state in states]
    return Adapter(lora.lora_config, hosts[0], hosts[-1], bool(finite))


def on_host(model: nnx.Module, slot: nnx.State) -> nnx.Module:
    """A model like `model` with this slot alone; its other weights are zeros that take no memory."""
    graphdef, state = nnx.split(model)
    kept = dict(nnx.to_flat_state(jax.tree.map_with_path(turned, slot)))
    zero = np.zeros((), np.float32)
    parts = [
        (path, kept[path] if path in kept else one.replace(np.broadcast_to(zero, one.shape)))
        for path, one in nnx.to_flat_state(state)
    ]
    return nnx.merge(graphdef, nnx.from_flat_state(parts))


def tensors_of(model: Any, config: types.LoraConfig) -> dict[str, np.ndarray]:
    """The slot of a model on the host, with the names and shapes that skyrl's save_lora_checkpoint writes.

    Experts' names begin as the others do, which skyrl leaves out.
    """

    def is_saved(path: tuple) -> bool:
        lora = any(name in path for name in MATRICES) and models.filter_lora(config, path)
        return lora or (model.config.mhc_expansion_rate > 1 and is_connector_path(path))

    found: dict[str, np.ndarray] = {}
    keep = SimpleNamespace(save_file=lambda tensors, _filename: found.update(tensors))
    stock, models.safetensors = models.safetensors, SimpleNamespace(numpy=keep)  # it would write a file
    try:
        models.save_safetensors(model.config, model, Path(), PREFIX, is_saved, adapter_index=0, rank=config.rank)
    finally:
        models.safetensors = stock
    named = ((PREFIX + name.removeprefix(PREFIX), one) for name, one in found.items())
    return {name: np.ascontiguousarray(one) for name, one in named}  # safetensors writes memory as it lies
