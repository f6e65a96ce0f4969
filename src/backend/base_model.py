"""What the base model's own configuration says, to check what is sent and to warn before time is spent."""

import os
from dataclasses import dataclass
from functools import lru_cache

UNKNOWN_VOCABULARY = 2**31


@dataclass(frozen=True, slots=True)
class BaseModel:
    architectures: tuple[str, ...] = ()  # empty = unknown
    vocab_size: int = UNKNOWN_VOCABULARY  # ids beyond it become NaN on the self-hosted server, for every user of it
    max_positions: int | None = None  # tokens of context it was made for; None = unknown, or scaled by rope settings
    rope_type: str = "default"


@lru_cache
def read_base_model(model_name: str) -> BaseModel:
    """From config.json of a local directory or of the hub; everything unknown when that cannot be read."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoConfig  # takes a second: not at import

    try:
        config = AutoConfig.from_pretrained(model_name)
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
    )
