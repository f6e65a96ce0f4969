"""A Llama of random weights, two layers, under a given tokenizer: tiny_llama.py TOKENIZER_DIRECTORY DIRECTORY

Grouped keys and tied embeddings, as SmolLM2 has; for tests and for trying a server out.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

WIDTH, INNER, LAYERS, HEADS, KEY_HEADS = 64, 128, 2, 4, 2
SIZE = WIDTH // HEADS


def random_weights(vocabulary: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights under Llama's names, float32; matrices are [out, in]."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    norm = np.ones(WIDTH, np.float32)
    weights = {"model.embed_tokens.weight": matrix(vocabulary, WIDTH), "model.norm.weight": norm}
    for layer in range(LAYERS):
        parts = {
            "self_attn.q_proj": matrix(HEADS * SIZE, WIDTH),
            "self_attn.k_proj": matrix(KEY_HEADS * SIZE, WIDTH),
            "self_attn.v_proj": matrix(KEY_HEADS * SIZE, WIDTH),
            "self_attn.o_proj": matrix(WIDTH, HEADS * SIZE),
            "mlp.gate_proj": matrix(INNER, WIDTH),
            "mlp.up_proj": matrix(INNER, WIDTH),
            "mlp.down_proj": matrix(WIDTH, INNER),
            "input_layernorm": norm,
            "post_attention_layernorm": norm,
        }
        weights |= {f"model.layers.{layer}.{name}.weight": value for name, value in parts.items()}
    return weights


def config(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """config.json; vocabulary and special ids are those of a model that has this tokenizer."""
    theta = 10_000.0
    taken = {key: tokenizer[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    return taken | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def write(source: Path, directory: Path) -> None:
    """Tokenizer and special ids of the model in `source`, this module's shape and weights."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, directory / name)
    made = config(json.loads((source / "config.json").read_text()))
    save_file(random_weights(made["vocab_size"]), directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
