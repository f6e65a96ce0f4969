"""The arrays of a new model by one program, for a model on one device.

Upstream: skyrl/backends/jax.py, JaxBackendImpl.__init__ computes each array by itself, the random ones that the file's
weights replace included: some 200 programs, each traced at every start and compiled at the first.
Here one program computes all that no file gives, with the base model's slot, and zeros for the rest.
"""

# pyright: reportMissingImports=false
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from skyrl.backends import jax as backend
from skyrl.tinker import types
from skyrl.tx.layers.stacked import StackedDecoderLayers

from repairs.engine_programs import quickly
from repairs.engine_slots import has_slots

BASE = types.LoraConfig(rank=1, alpha=1.0, seed=0)  # of slot 0, as upstream
stock_class, stock_slot = backend.get_model_class, backend.init_lora_adapter


def stacked_layers(self: Any, create_layer: Any, num_layers: int, rngs: nnx.Rngs) -> None:
    """Replaces StackedDecoderLayers.__init__. Traceable, one trace for all layers."""
    self.num_layers, kind = num_layers, []
    if num_layers == 0:
        self._stacked = None
        return

    def layer(key: jax.Array) -> nnx.State:
        graphdef, state = nnx.split(create_layer(nnx.Rngs(key)))
        kind.append(graphdef)
        return state

    state = jax.vmap(layer)(jax.random.split(rngs.params(), num_layers))
    self._stacked = nnx.merge(kind[0], nnx.spmd.add_axis(state, 0, {nnx.PARTITION_NAME: None}))


def get_model_class(model_config: Any) -> Any:
    """Wraps get_model_class: what makes the model."""
    model_class = stock_class(model_config)

    def make(config: Any, *, dtype: Any, rngs: nnx.Rngs) -> nnx.Module:
        mesh, kind = jax.sharding.get_mesh(), []
        if mesh.size > 1:
            return model_class(config, dtype=dtype, rngs=rngs)

        def new_model() -> nnx.State:
            model = model_class(config, dtype=dtype, rngs=nnx.Rngs(0))
            stock_slot(model, 0, BASE)
            graphdef, state = nnx.split(model)
            kind.append(graphdef)
            return jax.tree.map_with_path(lambda path, it: it if has_slots(path) else jnp.zeros_like(it), state)

        layers, StackedDecoderLayers.__init__ = StackedDecoderLayers.__init__, stacked_layers
        try:
            state = jax.jit(new_model, compiler_options=quickly())()
        finally:
            StackedDecoderLayers.__init__ = layers
        places = jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), nnx.get_partition_spec(state))
        return nnx.merge(kind[0], jax.device_put(state, places))

    return make


def init_slot(model: nnx.Module, adapter_index: int, lora_config: types.LoraConfig) -> None:
    """Wraps init_lora_adapter: the base model's slot was made with the model."""
    if adapter_index or jax.sharding.get_mesh().size > 1:
        stock_slot(model, adapter_index, lora_config)


def apply() -> None:
    backend.get_model_class = get_model_class
    backend.init_lora_adapter = init_slot
