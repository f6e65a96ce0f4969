"""Writes models/quickstart: the tokenizer, and weights that know nothing yet.

python -m scripts.quickstart.make_model [DIRECTORY]
"""

import sys
from pathlib import Path

from scripts.models.portable_tokenizer import save_portable
from scripts.quickstart.shape import Shape, padded, random_weights, save
from scripts.quickstart.vocabulary import PAD, TURN_END, build_tokenizer

SEED = 0


def main(directory: Path) -> None:
    tokenizer = build_tokenizer()
    save_portable(tokenizer, directory)
    shape = Shape(vocab_size=padded(len(tokenizer)))
    ids = tokenizer.get_vocab()
    weights = random_weights(shape, SEED)
    save(directory, shape, weights, turn_end=ids[TURN_END], pad=ids[PAD])
    print(f"{directory}: {len(tokenizer)} tokens, {sum(w.size for w in weights.values()) / 1e6:.2f} M parameters")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "models/quickstart"))
