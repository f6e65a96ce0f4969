"""Writes models/shell before and after its pretraining.

python -m scripts.shell.make_model [DIRECTORY]       the tokenizer; weights of models/quickstart under new tokens
python -m scripts.shell.make_model --half DIRECTORY  the pretrained weights rounded to half precision, half as large

The server computes with them in float32, as config.json says.
"""

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from scripts.desk.make_model import make
from scripts.shell.agent import Agent
from scripts.shell.vocabulary import build_tokenizer


def halve(directory: Path) -> None:
    file = directory / "model.safetensors"
    weights = {name: value.astype(np.float16) for name, value in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    print(f"{file}: {file.stat().st_size / 1e6:.2f} MB")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--half"]:
        halve(Path(arguments[1]))
    else:
        make(Path(arguments[0] if arguments else "models/shell"), build_tokenizer(Agent()))


if __name__ == "__main__":
    main(sys.argv[1:])
