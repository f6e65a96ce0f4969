"""Forms of weights: whether an adapter's names are PEFT's, and what tinker_cookbook.weights makes of one."""

import importlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from harbortrainer.backend.adapter import TENSORS
from harbortrainer.errors import UserError, one_line

_NAME = re.compile(r"base_model\.model\..+\.lora_[AB]\.weight")
_FUSED = re.compile(r"unembed_tokens|\.experts\.w\d|in_proj_[qkv]\.")  # names of Tinker's own models


def header(file: Path) -> dict[str, Any]:
    """Dtype and shape of each tensor in a file of safetensors."""
    with file.open("rb") as opened:
        found = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return {name: one for name, one in found.items() if name != "__metadata__"}


def is_peft(folder: Path) -> bool:
    """Whether PEFT's names and shapes are those of the adapter."""
    tensors = header(folder / TENSORS).items()
    return all(_NAME.fullmatch(name) and not _FUSED.search(name) and len(one["shape"]) == 2 for name, one in tensors)


def to_peft(folder: Path, model_name: str) -> None:
    """Give Tinker's own names of the adapter in `folder` PEFT's form. Raises UserError."""
    made = folder / "peft"
    _cookbook("build_lora_adapter", base_model=model_name, adapter_path=str(folder), output_path=str(made))
    for file in made.iterdir():
        file.replace(folder / file.name)
    made.rmdir()


def merge(folder: Path, model_name: str) -> None:
    """Replace the adapter in `folder` by the whole model. Raises UserError."""
    made = folder / "merged"
    _cookbook("build_hf_model", base_model=model_name, adapter_path=str(folder), output_path=str(made))
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()
    for file in made.iterdir():
        shutil.move(file, folder / file.name)
    made.rmdir()


def require_cookbook(what: str) -> Any:
    """tinker_cookbook.weights. Raises UserError where it is not installed."""
    try:
        return importlib.import_module("tinker_cookbook.weights")
    except ImportError as error:
        raise UserError(
            f"{what}: needs tinker_cookbook.weights with torch ({error}); install the extra: "
            'uv pip install "harbortrainer[export]"'
        ) from None


def _cookbook(name: str, **arguments: str) -> None:
    function = getattr(require_cookbook("export"), name)
    try:
        function(**arguments)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"model_name={arguments['base_model']}: {name}: {one_line(error, 300)}") from error
