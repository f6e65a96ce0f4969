"""Qwen3-0.6B's shape, random bfloat16 weights, a long context, for benchmarks: random_qwen3.py DIRECTORY [CONTEXT]

Its tokenizer is the quickstart policy's: benchmarks send token ids.
"""

import json
import shutil
import sys
from pathlib import Path

import ml_dtypes  # pyright: ignore[reportMissingImports]
import numpy as np
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parents[2]
WIDTH, INNER, LAYERS, HEADS, KEY_HEADS, SIZE, VOCABULARY = 1024, 3072, 28, 16, 8, 128, 151936


def config(context: int) -> dict[str, object]:
    theta = 1_000_000.0
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def weights() -> dict[str, np.ndarray]:
    """Under Qwen3's names; matrices are [out, in]."""
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns), np.float32) * columns**-0.5).astype(ml_dtypes.bfloat16)

    def ones(size: int) -> np.ndarray:
        return np.ones(size, ml_dtypes.bfloat16)

    made = {"model.embed_tokens.weight": matrix(VOCABULARY, WIDTH), "model.norm.weight": ones(WIDTH)}
    for layer in range(LAYERS):
        parts = {
            "self_attn.q_proj": matrix(HEADS * SIZE, WIDTH),
            "self_attn.k_proj": matrix(KEY_HEADS * SIZE, WIDTH),
            "self_attn.v_proj": matrix(KEY_HEADS * SIZE, WIDTH),
            "self_attn.o_proj": matrix(WIDTH, HEADS * SIZE),
            "self_attn.q_norm": ones(SIZE),
            "self_attn.k_norm": ones(SIZE),
            "mlp.gate_proj": matrix(INNER, WIDTH),
            "mlp.up_proj": matrix(INNER, WIDTH),
            "mlp.down_proj": matrix(WIDTH, INNER),
            "input_layernorm": ones(WIDTH),
            "post_attention_layernorm": ones(WIDTH),
        }
        made |= {f"model.layers.{layer}.{name}.weight": value for name, value in parts.items()}
    return made


def main(directory: Path, context: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(ROOT / "models" / "quickstart" / name, directory / name)
    save_file(weights(), directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config(context), indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 131072)
