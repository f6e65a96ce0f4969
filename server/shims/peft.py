"""Stands in for peft where peft is not installed.

skyrl's JAX backend uses one thing of it: a LoraConfig that writes adapter_config.json beside saved adapters.
"""

import json
from pathlib import Path
from typing import Any

__version__ = "0.0.0"


class LoraConfig:
    def __init__(self, base_model_name_or_path: str, r: int, lora_alpha: float) -> None:
        self.fields: dict[str, Any] = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": str(base_model_name_or_path),
            "r": r,
            "lora_alpha": lora_alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "inference_mode": True,
        }

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Writes adapter_config.json into an existing directory."""
        Path(save_directory, "adapter_config.json").write_text(json.dumps(self.fields, indent=2) + "\n")
