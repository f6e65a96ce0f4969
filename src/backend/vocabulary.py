"""How many token ids the base model has: an id beyond them becomes NaN on the self-hosted server, for every user."""

import os


def vocabulary_size(model_name: str) -> int:
    """From the model's own configuration; no upper bound when that cannot be read."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model_name)
    except (OSError, ValueError, KeyError):
        return 2**31
    text_config = getattr(config, "text_config", config)
    return int(getattr(text_config, "vocab_size", 2**31))
