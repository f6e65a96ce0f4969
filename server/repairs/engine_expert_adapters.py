"""Sampler checkpoints keep the whole adapter of an expert layer.

Upstream: skyrl/tx/utils/models.py, get_adapter_slice cuts the second and third dimension to the rank. An expert layer's
adapters have the expert dimension before those, so rows of lora_A and whole experts of lora_B are lost at saving.
"""

# pyright: reportMissingImports=false
from skyrl.tx.layers.connectors import is_connector_path
from skyrl.tx.utils import models


def get_adapter_slice(path: tuple, adapter_index: int | None, rank: int | None) -> tuple | None:
    """Replaces skyrl's: where one adapter lies in a parameter of one layer, cut to its rank. None: in no adapter."""
    if adapter_index is None:
        return None
    if "lora_A" in path:
        return (adapter_index, ..., slice(None, rank))
    if "lora_B" in path:
        return (adapter_index, ..., slice(None, rank), slice(None))
    return (adapter_index,) if is_connector_path(path) else None


def apply() -> None:
    models.get_adapter_slice = get_adapter_slice
