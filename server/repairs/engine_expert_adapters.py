"""Sampler checkpoints keep the whole adapter of an expert layer, under the names that vLLM reads.

Upstream: skyrl/tx/utils/models.py, get_adapter_slice cuts the second and third dimension to the rank. An expert layer's
adapters have the expert dimension before those, so rows of lora_A and whole experts of lora_B are lost at saving.
get_expert_key leaves ".weight" out, which get_param_key adds to other adapters.
"""

# pyright: reportMissingImports=false
from skyrl.tx.layers.connectors import is_connector_path
from skyrl.tx.utils import models

stock_expert_key = models.get_expert_key


def get_adapter_slice(path: tuple, adapter_index: int | None, rank: int | None) -> tuple | None:
    """Replaces skyrl's: where one adapter lies in a parameter of one layer, cut to its rank. None: in no adapter."""
    if adapter_index is None:
        return None
    if "lora_A" in path:
        return (adapter_index, ..., slice(None, rank))
    if "lora_B" in path:
        return (adapter_index, ..., slice(None, rank), slice(None))
    return (adapter_index,) if is_connector_path(path) else None


def get_expert_key(path: tuple, expert: int) -> str:
    """Wraps skyrl's: the name of one expert's weight in a file."""
    key = stock_expert_key(path, expert)
    return f"{key}.weight" if path[-1] in ("lora_A", "lora_B") else key


def apply() -> None:
    models.get_expert_key = get_expert_key
    models.get_adapter_slice = get_adapter_slice
