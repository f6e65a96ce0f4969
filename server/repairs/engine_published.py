"""Qwen3.5 as it is published: names of the text model's weights, and the dtype of a model with images.

Upstream: skyrl/tx/models/qwen3_5.py expects model.language_model.* of every class, but Qwen3_5ForCausalLM is saved with
model.layers.*; skyrl/backends/jax.py reads the dtype in text_config, where transformers 5 does not write it.
Adapters have their base model's names: vLLM finds the layers of either class.
"""

# pyright: reportMissingImports=false
from typing import Any

from skyrl.tx.models import configs, qwen3_5

stock_config = configs.ModelConfig.get_text_config


class TextForCausalLM(qwen3_5.Qwen3_5ForCausalLM):
    """Its `model` is the text model itself, and not the part of one."""

    def __init__(self, config: Any, **options: Any) -> None:
        super().__init__(config, **options)
        self.model = self.model.language_model


def get_text_config(self: Any, **options: Any) -> Any:
    """Wraps ModelConfig.get_text_config."""
    found = stock_config(self, **options)
    if found.dtype is None:
        found.dtype = self.dtype
    return found


def apply() -> None:
    qwen3_5.Qwen3_5TextModel.language_model = property(lambda self: self)
    qwen3_5.Qwen3_5ForCausalLM = TextForCausalLM
    configs.ModelConfig.get_text_config = get_text_config
