"""A GGUF file of a Llama-family model -> a Hugging Face directory: python -m scripts.models.convert_gguf FILE DIRECTORY

Writes model.safetensors (float32), config.json, tokenizer.json, tokenizer_config.json and chat_template.jinja. Needs
the package gguf besides the trainer's own. scripts/get_smollm2.sh runs it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader  # pyright: ignore[reportMissingImports]
from gguf.quants import dequantize  # pyright: ignore[reportMissingImports]
from safetensors.numpy import save_file

from scripts.models.gguf_tokenizer import save_tokenizer

TOP = {"output_norm": "model.norm", "token_embd": "model.embed_tokens", "output": "lm_head"}
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Metadata:
    """The file's key-value pairs; those of its architecture without the prefix."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields
        self.architecture: str = self["general.architecture"]
        if self.architecture != "llama":
            sys.exit(f"architecture {self.architecture!r}: only files of the llama architecture are converted")

    def __getitem__(self, key: str) -> Any:
        return self._fields[key].contents()

    def of_model(self, key: str) -> Any:
        return self[f"{self.architecture}.{key}"]


def hub_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`. Raises KeyError for what is not Llama's."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{BLOCK[parts[2]]}.{parts[3]}"
    return f"{TOP[parts[0]]}.{parts[1]}"


def unpermuted(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key matrix [heads * size, in] in the hub's order.

    llama.cpp turns neighbouring pairs of a head's dimensions, the hub's code the first half against the second.
    """
    rows, width = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def read_weights(reader: GGUFReader, heads: int, key_heads: int) -> dict[str, np.ndarray]:
    """Every tensor under the hub's name, float32, matrices [out, in]."""
    weights = {}
    for tensor in reader.tensors:
        if tensor.name.startswith("rope_freqs"):
            sys.exit("rope_freqs: this file scales its positions, which is not converted")
        shape = [int(size) for size in reversed(tensor.shape)]  # GGUF names the fastest axis first
        value = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
        name = hub_name(tensor.name)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            value = unpermuted(value, heads if "q_proj" in name else key_heads)
        weights[name] = np.ascontiguousarray(value)
    return weights


def tie(weights: dict[str, np.ndarray]) -> bool:
    """Whether one matrix serves as embedding and output: True where the file has one, or two quantised copies of one.

    Of two copies the output's is kept: quantisers give it more bits.
    """
    head = weights.get("lm_head.weight")
    if head is None:
        return True
    table = weights["model.embed_tokens.weight"]
    if np.corrcoef(head[:: len(head) // 64].ravel(), table[:: len(table) // 64].ravel())[0, 1] < 0.9:
        return False
    weights["model.embed_tokens.weight"] = weights.pop("lm_head.weight")
    return True


def model_config(meta: Metadata, vocabulary: int, tied: bool) -> dict[str, Any]:
    width, heads = meta.of_model("embedding_length"), meta.of_model("attention.head_count")
    theta = float(meta.of_model("rope.freq_base"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": meta.of_model("feed_forward_length"),
        "num_hidden_layers": meta.of_model("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.of_model("attention.head_count_kv"),
        "head_dim": width // heads,
        "hidden_act": "silu",
        "max_position_embeddings": meta.of_model("context_length"),
        "rms_norm_eps": round(float(meta.of_model("attention.layer_norm_rms_epsilon")), 9),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def convert(source: Path, directory: Path) -> None:
    reader = GGUFReader(str(source))
    meta = Metadata(reader)
    weights = read_weights(reader, meta.of_model("attention.head_count"), meta.of_model("attention.head_count_kv"))
    config = model_config(meta, len(meta["tokenizer.ggml.tokens"]), tie(weights))
    directory.mkdir(parents=True, exist_ok=True)
    save_tokenizer(meta, directory, context=config["max_position_embeddings"])
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")  # last: a directory with it is whole
    size = sum(weight.size for weight in weights.values()) / 1e6
    print(f"{directory}: {config['architectures'][0]}, {size:.1f} M parameters, {config['vocab_size']} tokens")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
