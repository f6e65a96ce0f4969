"""A Llama or Qwen3 of random weights, two layers, under a given tokenizer, to test or try a server:

    tiny_model.py TOKENIZER_DIRECTORY DIRECTORY [llama|qwen3] [float32|bfloat16]

Grouped keys and tied embeddings, as SmolLM2 has.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np

WIDTH, INNER, LAYERS, HEADS, KEY_HEADS = 64, 128, 2, 4, 2
SIZE = WIDTH // HEADS
Kind = Literal["llama", "qwen3"]
Dtype = Literal["float32", "bfloat16"]


def random_weights(vocabulary: int, kind: Kind, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights under the names of `kind`, float32; matrices are [out, in]."""
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
        if kind == "qwen3":
            parts |= {f"self_attn.{name}_norm": np.ones(SIZE, np.float32) for name in "qk"}
        weights |= {f"model.layers.{layer}.{name}.weight": value for name, value in parts.items()}
    return weights


def safetensors(weights: dict[str, np.ndarray], dtype: Dtype) -> bytes:
    """A file of float32 weights: length of the header, header, data. Written here, because numpy has no bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    size = 0
    for name, values in weights.items():
        parts.append(values.tobytes() if dtype == "float32" else bfloat16(values).tobytes())
        kind = "F32" if dtype == "float32" else "BF16"
        header[name] = {"dtype": kind, "shape": values.shape, "data_offsets": [size, size + len(parts[-1])]}
        size += len(parts[-1])
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return b"".join([len(head).to_bytes(8, "little"), head, *parts])


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Finite float32 values -> the 16 bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def config(tokenizer: dict[str, Any], kind: Kind, dtype: Dtype) -> dict[str, Any]:
    """config.json; vocabulary and special ids are those of a model that has this tokenizer."""
    theta = 10_000.0
    taken = {key: tokenizer[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    return taken | {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
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
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def write(source: Path, directory: Path, kind: Kind = "llama", dtype: Dtype = "float32") -> None:
    """Tokenizer and special ids of the model in `source`, this module's shape and weights."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, directory / name)
    made = config(json.loads((source / "config.json").read_text()), kind, dtype)
    file = safetensors(random_weights(made["vocab_size"], kind), dtype)
    (directory / "model.safetensors").write_bytes(file)
    (directory / "config.json").write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])  # pyright: ignore[reportArgumentType]
