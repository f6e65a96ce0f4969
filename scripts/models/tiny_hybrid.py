"""A Qwen3.5 of random weights under a given tokenizer, to test or try a server:

    tiny_hybrid.py TOKENIZER_DIRECTORY DIRECTORY [text|published] [float32|bfloat16] [tiny|wide|4b|4b-half]

Three layers of linear attention and one of attention, by turns. "text" is Qwen3_5ForCausalLM as transformers saves it,
"published" Qwen3_5ForConditionalGeneration with the dtype at the top, without the weights of its image part. vLLM's CPU
kernels take the head sizes of "wide", not those of "tiny". "4b" is the shape of Qwen3.5-4B (8 GB in bfloat16,
computed by 16 cores), "4b-half" has half of its layers.
"""

import json
import shutil
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
from scripts.models import tiny_model
from scripts.models.tiny_model import Dtype

Kind = Literal["text", "published"]
CLASSES: dict[Kind, str] = {"text": "Qwen3_5ForCausalLM", "published": "Qwen3_5ForConditionalGeneration"}
KERNEL, INTERVAL = 4, 4
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_position_embeddings": 64}


@dataclass(frozen=True, slots=True)
class Shape:
    width: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head: int  # size of a head
    linear_keys: int  # heads of linear attention
    linear_values: int
    linear_head: int
    vocabulary: int | None = None  # None = that of the tokenizer's model


NARROW = 64  # its logits are small by themselves; hybrid_reference.json has what transformers computes
SHAPES = {
    "tiny": Shape(64, 128, 4, 4, 2, 32, 2, 4, 16),
    "wide": Shape(64, 128, 4, 2, 1, 128, 1, 2, 128),
    "4b": Shape(2560, 9216, 32, 16, 4, 256, 16, 32, 128, 248_320),
    "4b-half": Shape(2560, 9216, 16, 16, 4, 256, 16, 32, 128, 248_320),
}


def places(vocabulary: int, shape: Shape, prefix: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights; matrices are [out, in]."""
    found: dict[str, tuple[int, ...]] = {
        f"{prefix}embed_tokens.weight": (vocabulary, shape.width),
        f"{prefix}norm.weight": (shape.width,),
    }
    for layer in range(shape.layers):
        attention = full_attention(shape) if (layer + 1) % INTERVAL == 0 else linear_attention(shape)
        parts = {f"mlp.{name}_proj.weight": (shape.inner, shape.width) for name in ("gate", "up")}
        parts |= {"mlp.down_proj.weight": (shape.width, shape.inner)}
        parts |= {f"{name}_layernorm.weight": (shape.width,) for name in ("input", "post_attention")}
        found |= {f"{prefix}layers.{layer}.{name}": place for name, place in (attention | parts).items()}
    return found


def full_attention(shape: Shape) -> dict[str, tuple[int, ...]]:
    queries, keys = shape.heads * shape.head, shape.key_heads * shape.head
    return {
        "self_attn.q_proj.weight": (2 * queries, shape.width),  # with the gate of the output
        "self_attn.k_proj.weight": (keys, shape.width),
        "self_attn.v_proj.weight": (keys, shape.width),
        "self_attn.o_proj.weight": (shape.width, queries),
        "self_attn.q_norm.weight": (shape.head,),
        "self_attn.k_norm.weight": (shape.head,),
    }


def linear_attention(shape: Shape) -> dict[str, tuple[int, ...]]:
    keys, values = shape.linear_keys * shape.linear_head, shape.linear_values * shape.linear_head
    return {
        "linear_attn.in_proj_qkv.weight": (2 * keys + values, shape.width),
        "linear_attn.in_proj_z.weight": (values, shape.width),
        "linear_attn.in_proj_b.weight": (shape.linear_values, shape.width),
        "linear_attn.in_proj_a.weight": (shape.linear_values, shape.width),
        "linear_attn.out_proj.weight": (shape.width, values),
        "linear_attn.conv1d.weight": (2 * keys + values, 1, KERNEL),
        "linear_attn.A_log": (shape.linear_values,),
        "linear_attn.dt_bias": (shape.linear_values,),
        "linear_attn.norm.weight": (shape.linear_head,),
    }


def values(name: str, place: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """float32. A step changes the model about as much as a trained one, and no norm is as it starts."""
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.01, 1, place)).astype(np.float32)
    drawn = rng.standard_normal(place, dtype=np.float32)
    if "embed_tokens" in name:
        return drawn
    if len(place) == 1 and ".layers." not in name and place[0] > NARROW:  # logits of about 1; embeddings are tied
        return (np.sign(drawn) * place[0] ** -0.5 - 1).astype(np.float32)
    if len(place) == 1:
        return (start_of(name, place[0]) + 0.1 * drawn).astype(np.float32)
    scale = 0.2 if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")) else 1.0
    return drawn * np.float32(0.5 if "conv1d" in name else scale * place[1] ** -0.5)


def start_of(name: str, width: int) -> float:
    """Of a norm, to which 1 is added but in linear attention; the last one makes logits of about 1."""
    if "linear_attn.norm" in name:
        return 1.0
    return 0.0 if ".layers." in name else width**-0.5 - 1


def config(tokenizer: dict[str, Any], kind: Kind, dtype: Dtype, shape: Shape) -> dict[str, Any]:
    """config.json; vocabulary and special ids are those of a model that has this tokenizer."""
    text = {key: tokenizer[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    if shape.vocabulary is not None:
        text["vocab_size"] = shape.vocabulary
    rope = {"rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25}
    types = ["linear_attention" if (layer + 1) % INTERVAL else "full_attention" for layer in range(shape.layers)]
    text |= {
        "model_type": "qwen3_5_text",
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head,
        "hidden_act": "silu",
        "max_position_embeddings": 262_144 if shape.vocabulary else 2048,
        "rms_norm_eps": 1e-6,
        "layer_types": types,
        "linear_conv_kernel_dim": KERNEL,
        "linear_key_head_dim": shape.linear_head,
        "linear_value_head_dim": shape.linear_head,
        "linear_num_key_heads": shape.linear_keys,
        "linear_num_value_heads": shape.linear_values,
        "mamba_ssm_dtype": "float32",
        "attn_output_gate": True,
        "tie_word_embeddings": True,
        "rope_parameters": rope | {"mrope_interleaved": True, "mrope_section": sections(shape.head // 8)},
    }
    top = {"architectures": [CLASSES[kind]], "dtype": dtype, "tie_word_embeddings": True}
    if kind == "text":
        return text | top
    vision = {"model_type": "qwen3_5", "out_hidden_size": shape.width} | VISION
    return top | {"model_type": "qwen3_5", "text_config": text, "vision_config": vision}


def sections(pairs: int) -> list[int]:
    """How the rotated pairs of a head are divided among time, height and width."""
    return [(pairs + 2 - place) // 3 for place in range(3)]


def write(source: Path, directory: Path, kind: Kind = "text", dtype: Dtype = "float32", size: str = "tiny") -> None:
    """Tokenizer and special ids of the model in `source`, shape `size`; the same weights for either kind."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, directory / name)
    tokenizer = json.loads((source / "config.json").read_text())
    made, shape, rng = config(tokenizer, kind, dtype, SHAPES[size]), SHAPES[size], np.random.default_rng(0)
    shapes = places((made | made.get("text_config", {}))["vocab_size"], shape, prefix_of(kind))
    parts = iter([tiny_model.header(shapes, dtype)])
    if sum(int(np.prod(place)) for place in shapes.values()) < tiny_model.LARGE:
        parts = chain(parts, (tiny_model.data(values(name, place, rng), dtype) for name, place in shapes.items()))
    else:
        parts = tiny_model.pieces(shapes, dtype, values)
    with (directory / "model.safetensors").open("wb") as file:
        file.writelines(parts)
    (directory / "config.json").write_text(json.dumps(made, indent=2) + "\n")


def prefix_of(kind: Kind) -> str:
    return "model." if kind == "text" else "model.language_model."


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])  # pyright: ignore[reportArgumentType]
