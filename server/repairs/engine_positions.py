"""Scaled positions of Qwen3, Qwen3.5 and Llama models, in training and sampling.

Upstream: skyrl/tx/models/qwen3.py, qwen3_5.py, llama3.py give apply_rope the base of the frequencies and nothing of
their scaling, so a model with YaRN or Llama 3.1's positions is computed as another model.
"""

# pyright: reportMissingImports=false
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from pydantic import Field
from skyrl.backends import jax as backend
from skyrl.tx.models import llama3, qwen3, qwen3_5
from skyrl.utils.log import logger

from repairs.positions import frequencies, parameters_of


def rotate(
    parameters: dict[str, Any], inputs: jax.Array, position_ids: jax.Array, head_dim: int, theta: float
) -> jax.Array:
    """Replaces apply_rope. inputs: (rows, tokens, heads, size); positions: (rows or 1, tokens)."""
    turns, factor = frequencies(head_dim, parameters | {"rope_theta": theta})
    angles = position_ids[..., None].astype(jnp.float32) * jnp.asarray(turns)
    cos, sin = (jnp.expand_dims(wave(angles) * factor, -2) for wave in (jnp.cos, jnp.sin))
    first, second = jnp.split(inputs, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1).astype(inputs.dtype)


def with_positions(stock_init: Any) -> Any:
    def init(self: Any, base_model: str, config: Any, process_id: int) -> None:
        """Wraps JaxBackendImpl.__init__."""
        folder = backend.resolve_model_path(base_model)
        text = backend.AutoConfig.from_pretrained(folder).get_text_config()
        parameters = parameters_of(text.to_dict(), config.context_limit)
        logger.info(f"positions: {parameters}")
        for module in (qwen3, qwen3_5, llama3):
            module.apply_rope = partial(rotate, parameters)
        stock_init(self, base_model, config, process_id)

    return init


def apply() -> None:
    class BackendConfig(backend.JaxBackendConfig):
        context_limit: int = Field(default=0, ge=0, description="Tokens of a sequence; 0: the model's whole context")

    backend.JaxBackendConfig = BackendConfig
    backend.JaxBackendImpl.__init__ = with_positions(backend.JaxBackendImpl.__init__)
