"""Writes models/desk before its pretraining: the tokenizer, and the weights of models/quickstart under new tokens.

python -m scripts.desk.make_model [DIRECTORY]

Tokens of both vocabularies (bytes, control tokens, syllables of names) keep their rows, so the policy can copy names
from the start. Rows of new phrases are random.
"""

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from transformers import PreTrainedTokenizerFast

from scripts.desk.vocabulary import build_tokenizer
from scripts.models.portable_tokenizer import save_portable
from scripts.quickstart.shape import Shape, random_weights, read_shape, save
from scripts.quickstart.vocabulary import PAD, TURN_END
from scripts.quickstart.vocabulary import build_tokenizer as build_known

SEED, KNOWN = 0, Path("models/quickstart")
TABLES = ("model.embed_tokens.weight", "lm_head.weight")  # a row for each token


def weights(ids: dict[str, int], shape: Shape) -> dict[str, np.ndarray]:
    """Those of the quickstart, its tables rearranged for a vocabulary with these ids."""
    found, known = load_file(KNOWN / "model.safetensors"), build_known().get_vocab()
    fresh = random_weights(shape, SEED)
    for table in TABLES:
        for token in ids.keys() & known.keys():
            fresh[table][ids[token]] = found[table][known[token]]
    return {name: fresh[name] if name in TABLES else value for name, value in found.items()}


def make(directory: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write tokenizer, config.json and model.safetensors."""
    save_portable(tokenizer, directory)
    shape, ids = read_shape(KNOWN), tokenizer.get_vocab()  # its vocabulary's size too: the server compiles for a shape
    assert len(tokenizer) <= shape.vocab_size
    made = weights(ids, shape)
    save(directory, shape, made, turn_end=ids[TURN_END], pad=ids[PAD])
    print(f"{directory}: {len(tokenizer)} tokens, {sum(w.size for w in made.values()) / 1e6:.2f} M parameters")


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "models/desk"), build_tokenizer())
