"""Logits and log-probabilities are float32, whatever the dtype of the model.

Upstream: skyrl/tx/utils/logits_processor.py, LogitsProcessorMixin.logits_to_logprobs computes in the logits' dtype, and
the output layer (LoRAEmbed.T, LoRALinear in skyrl/tx/layers/lora.py) rounds logits to the model's. In bfloat16 a
logit between 8 and 16 is rounded to a multiple of 1/16: 0.03 nats on average, in training as in sampling, and most of
the difference between two engines.
Here the output layer's product, which adds up in float32 anyway, is not rounded; hidden states and weights keep their
dtype, and so do the products of its backward pass.
"""

# pyright: reportMissingImports=false
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from skyrl.tx.layers.lora import LoRAEmbed, LoRALinear
from skyrl.tx.models import deepseekv3, llama3, qwen3, qwen3_5
from skyrl.tx.utils.logits_processor import LogitsProcessorMixin

Head = Callable[..., jax.Array]
MODELS = (
    llama3.Llama3ForCausalLM,
    qwen3.Qwen3ForCausalLM,
    qwen3_5.Qwen3_5ForCausalLM,
    deepseekv3.DeepseekV3ForCausalLM,
)
stock_logprobs = LogitsProcessorMixin.logits_to_logprobs


def multiplied(hidden: jax.Array, kernel: jax.Array) -> jax.Array:
    return jnp.matmul(hidden, kernel, preferred_element_type=jnp.float32)


def backward(kernel: jax.Array, given: jax.Array) -> tuple[jax.Array, None]:
    return jnp.matmul(given.astype(kernel.dtype), kernel.T), None


product: Any = jax.custom_vjp(multiplied)  # (..., H), (H, V) -> (..., V) in float32; of a kernel that is not trained
product.defvjp(lambda hidden, kernel: (multiplied(hidden, kernel), kernel), backward)


def transposed(self: Any) -> Head:
    """Replaces LoRAEmbed.T: tied embeddings as an output layer."""
    return lambda hidden, adapter_indices=None: product(hidden, self.embedding[...].T)


def exact(stock_head: Callable[[Any], Head]) -> Callable[[Any], Head]:
    def get_lm_head(self: Any) -> Head:
        """Wraps a model's get_lm_head. An adapter's part has the model's dtype."""
        layer: Any = stock_head(self)
        if not isinstance(layer, LoRALinear):
            return layer

        def head(hidden: jax.Array, adapter_indices: jax.Array | None = None) -> jax.Array:
            logits = product(hidden, layer.kernel[...])
            return logits + layer.apply_lora(hidden, jnp.zeros(logits.shape, hidden.dtype), adapter_indices)

        return head

    return get_lm_head


def logits_to_logprobs(logits: jax.Array, target_ids: jax.Array) -> jax.Array:
    """Wraps LogitsProcessorMixin.logits_to_logprobs. (..., V) and (...) -> (...) in float32."""
    return stock_logprobs(logits.astype(jnp.float32), target_ids)


def apply() -> None:
    LoRAEmbed.T = property(transposed)
    for model in MODELS:
        model.get_lm_head = exact(model.get_lm_head)
    LogitsProcessorMixin.logits_to_logprobs = staticmethod(logits_to_logprobs)
