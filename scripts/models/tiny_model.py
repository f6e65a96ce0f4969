"""A Llama or Qwen3 of random weights under a given tokenizer, to test or try a server:

    tiny_model.py TOKENIZER_DIRECTORY DIRECTORY [llama|qwen3] [float32|bfloat16] [tiny|0.6b]

"tiny" has two layers, "0.6b" is the shape of Qwen3-0.6B. Both have grouped keys and tied embeddings.
"""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True, slots=True)
class Shape:
    width: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head: int  # size of a head
    vocabulary: int | None  # None = that of the tokenizer's model


SHAPES = {
    "tiny": Shape(64, 128, 2, 4, 2, 16, None),
    "0.6b": Shape(1024, 3072, 28, 16, 8, 128, 151_936),  # config.json of Qwen/Qwen3-0.6B
}
Kind = Literal["llama", "qwen3"]
Dtype = Literal["float32", "bfloat16"]


def random_weights(vocabulary: int, kind: Kind, shape: Shape = SHAPES["tiny"], seed: int = 0) -> dict[str, np.ndarray]:
    """Weights under the names of `kind`, float32; matrices are [out, in]."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    norm = np.ones(shape.width, np.float32)
    weights = {"model.embed_tokens.weight": matrix(vocabulary, shape.width), "model.norm.weight": norm}
    for layer in range(shape.layers):
        parts = {
            "self_attn.q_proj": matrix(shape.heads * shape.head, shape.width),
            "self_attn.k_proj": matrix(shape.key_heads * shape.head, shape.width),
            "self_attn.v_proj": matrix(shape.key_heads * shape.head, shape.width),
            "self_attn.o_proj": matrix(shape.width, shape.heads * shape.head),
            "mlp.gate_proj": matrix(shape.inner, shape.width),
            "mlp.up_proj": matrix(shape.inner, shape.width),
            "mlp.down_proj": matrix(shape.width, shape.inner),
            "input_layernorm": norm,
            "post_attention_layernorm": norm,
        }
        if kind == "qwen3":
            parts |= {f"self_attn.{name}_norm": np.ones(shape.head, np.float32) for name in "qk"}
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


def config(tokenizer: dict[str, Any], kind: Kind, dtype: Dtype, shape: Shape) -> dict[str, Any]:
    """config.json; vocabulary and special ids are those of a model that has this tokenizer."""
    theta = 10_000.0
    taken = {key: tokenizer[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    if shape.vocabulary is not None:
        taken["vocab_size"] = shape.vocabulary
    return taken | {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head,
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


def write(source: Path, directory: Path, kind: Kind = "llama", dtype: Dtype = "float32", size: str = "tiny") -> None:
    """Tokenizer and special ids of the model in `source`, shape `size`, random weights."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, directory / name)
    made = config(json.loads((source / "config.json").read_text()), kind, dtype, SHAPES[size])
    file = safetensors(random_weights(made["vocab_size"], kind, SHAPES[size]), dtype)
    (directory / "model.safetensors").write_bytes(file)
    (directory / "config.json").write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])  # pyright: ignore[reportArgumentType]
