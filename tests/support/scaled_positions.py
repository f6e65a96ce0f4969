"""Models with scaled positions, and what transformers computes for them: scaled_positions.json.

With torch and transformers installed this writes the file, in the root:  python -m tests.support.scaled_positions

Tokens stand at the start, at 60,000 and at 100,000: attention reaches over these distances.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from scripts.models import tiny_hybrid, tiny_model

FILE = Path(__file__).with_suffix(".json")
TOKENIZER = Path("models/quickstart")
PLACES = (0, 60_000, 100_000)
EACH = 96  # tokens at each place
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768, "rope_theta": 1_000_000.0}
LLAMA = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA |= {"original_max_position_embeddings": 8192, "rope_theta": 500_000.0}
PARTIAL = YARN | {"partial_rotary_factor": 0.25}
KINDS: dict[str, tuple[tiny_model.Kind | None, dict[str, Any]]] = {"yarn": ("qwen3", YARN), "llama3": ("llama", LLAMA)}
KINDS |= {"yarn of qwen3.5": (None, PARTIAL)}


def write_model(name: str, directory: Path) -> None:
    kind, scaling = KINDS[name]
    if kind is None:
        tiny_hybrid.write(TOKENIZER, directory)
    else:
        tiny_model.write(TOKENIZER, directory, kind, "float32")
    config = json.loads((directory / "config.json").read_text())
    config |= {"rope_parameters": scaling, "rope_theta": scaling["rope_theta"], "max_position_embeddings": 131_072}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def tokens() -> tuple[np.ndarray, np.ndarray]:
    """Ids and their positions, shape (1, N)."""
    positions = np.concatenate([np.arange(place, place + EACH) for place in PLACES])
    return np.random.default_rng(3).integers(5, 250, (1, positions.size)), positions[None]


def computed(name: str) -> list[float]:
    """transformers' log-probability of each token after the first."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM  # pyright: ignore[reportAttributeAccessIssue]

    with tempfile.TemporaryDirectory() as folder:
        write_model(name, Path(folder))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    ids, positions = (torch.from_numpy(one) for one in tokens())
    with torch.no_grad():
        whole = torch.ones_like(ids)  # without it, positions that jump begin another sequence
        logits = model(ids, attention_mask=whole, position_ids=positions).logits
    found = torch.log_softmax(logits[0, :-1].double(), -1).gather(1, ids[0, 1:, None])[:, 0]
    return [round(value, 7) for value in found.tolist()]


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: computed(name) for name in KINDS}) + "\n")
