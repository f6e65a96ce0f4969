"""A model directory with float32 weights -> the same in bfloat16: python -m scripts.models.to_bfloat16 FROM TO

Reads model.safetensors; copies the tokenizer; the config says bfloat16, so that the server loads it so.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from scripts.models.tiny_model import safetensors

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def convert(source: Path, directory: Path) -> None:
    """Exits when the weights are missing, in several files, or not float32."""
    if not (source / WEIGHTS).is_file():
        sys.exit(f"error: {source / WEIGHTS} is missing; a model in several files is not converted")
    weights = load_file(source / WEIGHTS)
    if other := {str(values.dtype) for values in weights.values()} - {"float32"}:
        sys.exit(f"error: {source / WEIGHTS} has {', '.join(sorted(other))}; only float32 is converted")
    directory.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.name not in (WEIGHTS, CONFIG):
            shutil.copy(file, directory)
    (directory / WEIGHTS).write_bytes(safetensors(weights, "bfloat16"))
    config = json.loads((source / CONFIG).read_text()) | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    print(f"{directory}: {sum(map(np.size, weights.values())) / 1e6:.1f} M parameters in bfloat16")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m scripts.models.to_bfloat16 FROM TO")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
