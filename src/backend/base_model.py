"""What the base model's own configuration says, to check what is sent and to warn before time is spent."""

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from src.chat_template import hub_options

UNKNOWN_VOCABULARY = 2**31
WIDTHS_KNOWN = {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "LlamaForCausalLM"}


@dataclass(frozen=True, slots=True)
class BaseModel:
    architectures: tuple[str, ...] = ()  # empty = unknown
    vocab_size: int = UNKNOWN_VOCABULARY  # ids beyond it become NaN on the self-hosted server, for every user of it
    max_positions: int | None = None  # tokens of context it was made for; None = unknown, or scaled by rope settings
    rope_type: str = "default"
    lora_width: int | None = None  # inputs and outputs of all layers that may have an adapter; None = not known here


@lru_cache
def read_base_model(model_name: str) -> BaseModel:
    """From config.json of a local directory or of the hub; everything unknown when that cannot be read."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoConfig  # takes a second: not at import

    try:
        config = AutoConfig.from_pretrained(model_name, **hub_options(model_name))
    except (OSError, ValueError, KeyError):
        return BaseModel()
    text = getattr(config, "text_config", config)
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    scaled = "factor" in rope
    return BaseModel(
        architectures=tuple(config.architectures or ()),
        vocab_size=int(getattr(text, "vocab_size", None) or UNKNOWN_VOCABULARY),
        max_positions=None if scaled else getattr(text, "max_position_embeddings", None),
        rope_type=str(rope.get("rope_type") or rope.get("type") or "default"),
        lora_width=_lora_width(text) if WIDTHS_KNOWN.intersection(config.architectures or ()) else None,
    )


def _lora_width(c: Any) -> int:
    """Sum of (inputs + outputs) over the linear layers of Llama and Qwen3, embedding and head included.

    An adapter of rank r has r parameters for each: A is r x inputs, B is outputs x r (Hu et al. 2021).
    """
    hidden, heads = c.hidden_size, c.num_attention_heads
    head = getattr(c, "head_dim", None) or hidden // heads
    query, key = heads * head, (getattr(c, "num_key_value_heads", None) or heads) * head
    attention = 2 * (hidden + query) + 2 * (hidden + key)
    experts = getattr(c, "num_experts", 0) or 0
    feed_forward = 3 * (hidden + c.intermediate_size)
    if experts:
        feed_forward = max(feed_forward, 3 * experts * (hidden + c.moe_intermediate_size) + hidden + experts)
    return c.num_hidden_layers * (attention + feed_forward) + 2 * (c.vocab_size + hidden)
