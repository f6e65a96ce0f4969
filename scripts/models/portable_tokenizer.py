"""Writes a tokenizer so that transformers 4 reads it, too: transformers 5 names a class that only it has."""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerFast


def save_portable(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    tokenizer.save_pretrained(str(directory))
    file = directory / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config.pop("backend", None)
    if "extra_special_tokens" in config:
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    file.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
