"""A Llama or Qwen3 of random weights under a given tokenizer, to test or try a server:

    tiny_model.py TOKENIZER_DIRECTORY DIRECTORY [llama|qwen3] [float32|bfloat16] [tiny|wide|0.6b|4b|tiny-moe|1b-moe]

"tiny" has two layers, "wide" these with Qwen3's vocabulary, "0.6b" and "4b" are the shapes of Qwen3-0.6B and Qwen3-4B.
All have grouped keys and tied embeddings. "4b" (8 GB) is computed by 16 cores. The last two are a mixture of experts
(qwen3 only): "1b-moe" has 32 experts, of which 8 compute a token.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    positions: int = 2048
    experts: int = 0  # 0 = none; each has `inner`
    chosen: int = 0  # experts for each token


SHAPES = {
    "tiny": Shape(64, 128, 2, 4, 2, 16, None),
    "wide": Shape(64, 128, 2, 4, 2, 32, 151_936),
    "0.6b": Shape(1024, 3072, 28, 16, 8, 128, 151_936),  # config.json of Qwen/Qwen3-0.6B
    "4b": Shape(2560, 9728, 36, 32, 8, 128, 151_936, 40_960),  # of Qwen/Qwen3-4B
    "tiny-moe": Shape(64, 32, 2, 4, 2, 16, None, experts=8, chosen=2),
    "1b-moe": Shape(1024, 768, 12, 16, 4, 128, 151_936, 40_960, experts=32, chosen=8),
}
LARGE = 10**9  # numbers, from which on they are computed and written piece by piece
Kind = Literal["llama", "qwen3"]
Dtype = Literal["float32", "bfloat16"]
Draw = Callable[[str, tuple[int, ...], np.random.Generator], np.ndarray]  # name and shape of a weight -> float32


def places(vocabulary: int, kind: Kind, shape: Shape) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights under the names of `kind`; matrices are [out, in]."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, shape.width),
        "model.norm.weight": (shape.width,),
    }
    for layer in range(shape.layers):
        parts: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (shape.heads * shape.head, shape.width),
            "self_attn.k_proj": (shape.key_heads * shape.head, shape.width),
            "self_attn.v_proj": (shape.key_heads * shape.head, shape.width),
            "self_attn.o_proj": (shape.width, shape.heads * shape.head),
            "input_layernorm": (shape.width,),
            "post_attention_layernorm": (shape.width,),
        }
        blocks = [f"mlp.experts.{number}" for number in range(shape.experts)] or ["mlp"]
        for block in blocks:
            parts |= {f"{block}.{name}_proj": (shape.inner, shape.width) for name in ("gate", "up")}
            parts[f"{block}.down_proj"] = (shape.width, shape.inner)
        if shape.experts:
            parts["mlp.gate"] = (shape.experts, shape.width)
        if kind == "qwen3":
            parts |= {f"self_attn.{name}_norm": (shape.head,) for name in "qk"}
        found |= {f"model.layers.{layer}.{name}.weight": place for name, place in parts.items()}
    return found


def random_values(place: tuple[int, ...], rng: np.random.Generator, **dtype: Any) -> np.ndarray:
    """float32. Norms are ones; rows of a matrix have about length 1."""
    if len(place) == 1:
        return np.ones(place, np.float32)
    return (rng.standard_normal(place, **dtype) * np.float32(place[1] ** -0.5)).astype(np.float32, copy=False)


def random_weights(vocabulary: int, kind: Kind, shape: Shape = SHAPES["tiny"], seed: int = 0) -> dict[str, np.ndarray]:
    """Weights under the names of `kind`, float32; matrices are [out, in]."""
    rng = np.random.default_rng(seed)
    return {name: random_values(place, rng) for name, place in places(vocabulary, kind, shape).items()}


def header(shapes: dict[str, tuple[int, ...]], dtype: Dtype) -> bytes:
    """What precedes the data in a file of safetensors: length of the header, header."""
    found: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    size = 0
    for name, place in shapes.items():
        end = size + int(np.prod(place)) * (4 if dtype == "float32" else 2)
        found[name] = {"dtype": "F32" if dtype == "float32" else "BF16", "shape": place, "data_offsets": [size, end]}
        size = end
    head = json.dumps(found).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head


def data(values: np.ndarray, dtype: Dtype) -> bytes:
    """Written here, because numpy has no bfloat16."""
    return values.tobytes() if dtype == "float32" else bfloat16(values).tobytes()


def safetensors(weights: dict[str, np.ndarray], dtype: Dtype) -> bytes:
    """A file of float32 weights."""
    head = header({name: values.shape for name, values in weights.items()}, dtype)
    return b"".join([head, *(data(values, dtype) for values in weights.values())])


def plain(_: str, place: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return random_values(place, rng, dtype=np.float32)


def pieces(shapes: dict[str, tuple[int, ...]], dtype: Dtype, draw: Draw = plain) -> Iterator[bytes]:
    """The same file piece by piece, with other numbers than random_weights; each core computes a weight."""

    def piece(numbered: tuple[int, tuple[str, tuple[int, ...]]]) -> bytes:
        number, (name, place) = numbered
        return data(draw(name, place, np.random.default_rng(number)), dtype)

    yield header(shapes, dtype)
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        yield from pool.map(piece, enumerate(shapes.items()))


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
    names = {"architectures": [f"{kind.capitalize()}ForCausalLM"], "model_type": kind}
    if shape.experts:
        names = {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.chosen,
            "moe_intermediate_size": shape.inner,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "router_aux_loss_coef": 0.001,
        }
    return (
        taken
        | names
        | {
            "hidden_size": shape.width,
            "intermediate_size": shape.inner,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.key_heads,
            "head_dim": shape.head,
            "hidden_act": "silu",
            "max_position_embeddings": shape.positions,
            "rms_norm_eps": 1e-5,
            "rope_theta": theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "dtype": dtype,
            "torch_dtype": dtype,
        }
    )


def write(source: Path, directory: Path, kind: Kind = "llama", dtype: Dtype = "float32", size: str = "tiny") -> None:
    """Tokenizer and special ids of the model in `source`, shape `size`, random weights."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, directory / name)
    made = config(json.loads((source / "config.json").read_text()), kind, dtype, SHAPES[size])
    shapes = places(made["vocab_size"], kind, SHAPES[size])
    if sum(int(np.prod(place)) for place in shapes.values()) < LARGE:
        parts = iter([safetensors(random_weights(made["vocab_size"], kind, SHAPES[size]), dtype)])
    else:
        parts = pieces(shapes, dtype)
    with (directory / "model.safetensors").open("wb") as file:
        for part in parts:
            file.write(part)
    (directory / "config.json").write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])  # pyright: ignore[reportArgumentType]
