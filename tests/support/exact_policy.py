"""A Qwen3 model in numpy and float64: what its log-probabilities are, whatever computes them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def exact_logprobs(folder: Path, tokens: Sequence[int]) -> np.ndarray:
    """(tokens, vocabulary): of what follows each token."""
    config = json.loads((folder / "config.json").read_text())
    weights = {name: value.astype(np.float64) for name, value in load_file(folder / "model.safetensors").items()}
    x = weights["model.embed_tokens.weight"][list(tokens)]
    for number in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{number}."
        layer = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        x = x + _attention(layer, config, _norm(x, layer["input_layernorm.weight"], config))
        h = _norm(x, layer["post_attention_layernorm.weight"], config)
        gate = h @ layer["mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ layer["mlp.up_proj.weight"].T)) @ layer["mlp.down_proj.weight"].T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    logits = _norm(x, weights["model.norm.weight"], config) @ head.T
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _norm(x: np.ndarray, weight: np.ndarray, config: dict) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config["rms_norm_eps"]) * weight


def _attention(layer: dict[str, np.ndarray], config: dict, x: np.ndarray) -> np.ndarray:
    size, count = config["head_dim"], len(x)

    def heads(name: str) -> np.ndarray:
        return (x @ layer[f"self_attn.{name}_proj.weight"].T).reshape(count, -1, size)

    q, k = (_turned(_norm(heads(n), layer[f"self_attn.{n}_norm.weight"], config), config) for n in ("q", "k"))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(value, group, axis=1) for value in (k, heads("v")))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
    scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", shares, v).reshape(count, -1) @ layer["self_attn.o_proj.weight"].T


def _turned(x: np.ndarray, config: dict) -> np.ndarray:
    """By the rotary positions."""
    half = x.shape[-1] // 2
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    angles = np.arange(len(x))[:, None, None] * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)
