"""Shape and files of the quickstart policy: Qwen3, 0.9 million parameters, fp32."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


@dataclass(frozen=True)
class Shape:
    vocab_size: int
    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0


def padded(size: int) -> int:
    return -(-size // 32) * 32


def random_weights(shape: Shape, seed: int) -> dict[str, np.ndarray]:
    """Weights under Qwen3's names; matrices are [out, in]."""
    rng = np.random.default_rng(seed)
    width, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    shrink = 0.04 / np.sqrt(2 * shape.num_hidden_layers)

    def matrix(rows: int, columns: int, scale: float = width**-0.5) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    def ones(size: int) -> np.ndarray:
        return np.ones(size, np.float32)

    table = matrix(shape.vocab_size, width, 0.02)
    weights = {"model.embed_tokens.weight": table, "lm_head.weight": table.copy(), "model.norm.weight": ones(width)}
    for layer in range(shape.num_hidden_layers):
        parts = {
            "self_attn.q_proj": matrix(queries, width),
            "self_attn.k_proj": matrix(keys, width),
            "self_attn.v_proj": matrix(keys, width),
            "self_attn.o_proj": matrix(width, queries, shrink),
            "self_attn.q_norm": ones(shape.head_dim),
            "self_attn.k_norm": ones(shape.head_dim),
            "mlp.gate_proj": matrix(inner, width),
            "mlp.up_proj": matrix(inner, width),
            "mlp.down_proj": matrix(width, inner, shrink),
            "input_layernorm": ones(width),
            "post_attention_layernorm": ones(width),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": value for name, value in parts.items()}
    return weights


def save(directory: Path, shape: Shape, weights: dict[str, np.ndarray], *, turn_end: int, pad: int) -> None:
    """Write config.json and model.safetensors."""
    config = asdict(shape) | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "bos_token_id": pad,
        "eos_token_id": turn_end,
        "pad_token_id": pad,
        "dtype": "float32",
        "torch_dtype": "float32",
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def read_shape(directory: Path) -> Shape:
    config = json.loads((directory / "config.json").read_text())
    return Shape(**{field.name: config[field.name] for field in fields(Shape) if field.name in config})
