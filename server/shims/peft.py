"""Stands in for peft where peft is not installed.

skyrl's JAX backend uses one thing of it: a LoraConfig that writes adapter_config.json beside saved adapters.
"""

import json
from pathlib import Path
from typing import Any

__version__ = "0.0.0"
TENSORS = "adapter_model.safetensors"


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
        """Writes adapter_config.json into a directory, with target_modules where its tensors are already saved.

        vLLM, like peft, loads no adapter without target_modules.
        """
        modules = target_modules(Path(save_directory, TENSORS))
        fields = self.fields | ({"target_modules": modules} if modules else {})
        Path(save_directory, "adapter_config.json").write_text(json.dumps(fields, indent=2) + "\n")


def target_modules(tensors: Path) -> list[str]:
    """Names of the adapted layers (q_proj, ...), from the header of a safetensors file: its length, then JSON."""
    if not tensors.is_file():
        return []
    with tensors.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in header if ".lora_" in name})
