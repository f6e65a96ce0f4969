"""Rotary frequencies of scaled positions, as transformers computes them: YaRN, Llama 3.1's, and the linear ones.

Nothing of skyrl is imported here: API and engine use it.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

KNOWN = ("default", "linear", "yarn", "llama3")
# Of Qwen3's model cards: a config for 40,960 positions is made for 32,768, and for 131,072 with YaRN
QWEN3, QWEN3_TRAINED, QWEN3_WHOLE = 40_960, 32_768, 131_072


def parameters_of(config: Mapping[str, Any], context: int = 0) -> dict[str, Any]:
    """rope_parameters of a config.json, also of one in the older form, for sequences of `context` tokens; 0: its whole.

    `rope_type` is always there. A Qwen3 without scaling has its card's YaRN where its own positions are not enough.
    """
    found = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    found.setdefault("rope_type", found.get("type", "default"))
    found.setdefault("rope_theta", config.get("rope_theta", 10_000.0))
    found.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    if found["rope_type"] == "default" and has_card(config) and not 0 < context <= QWEN3:
        factor = QWEN3_WHOLE / QWEN3_TRAINED
        found |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": QWEN3_TRAINED}
    return found


def has_card(config: Mapping[str, Any]) -> bool:
    is_qwen3 = config.get("model_type") in ("qwen3", "qwen3_moe")
    return is_qwen3 and config.get("max_position_embeddings") == QWEN3


def scaled_beyond(config: Mapping[str, Any], context: int) -> int | None:
    """Tokens up to which the model's card advises against the scaling that `context` brings; None = it brings none."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    own = given.get("rope_type", given.get("type", "default")) == "default"
    return QWEN3 if own and parameters_of(config, context)["rope_type"] == "yarn" else None


def longest(config: Mapping[str, Any]) -> int | None:
    """Tokens for which the model was made, with scaled positions; None = not told."""
    own, scaling = config.get("max_position_embeddings"), parameters_of(config)
    if scaling["rope_type"] in ("yarn", "linear") and own and scaling.get("factor"):
        return max(own, int(scaling["original_max_position_embeddings"] * scaling["factor"]))
    return own


def trouble(config: Mapping[str, Any], context: int) -> str | None:
    """Why positions up to `context` (0: the whole) cannot be computed; None = they can."""
    kind = parameters_of(config)["rope_type"]
    if is_ours(config) and kind not in KNOWN:
        return f"positions of rope_type={kind} are not computed here, only of {', '.join(KNOWN)}"
    if context and (most := longest(config)) and context > most:
        return f"it was made for {most} tokens, and has no positions beyond; set SKYRL_TX_CONTEXT_LIMIT={most} or less"
    return None


def is_ours(config: Mapping[str, Any]) -> bool:
    """Whether its positions are those of engine_positions; other families of skyrl have their own."""
    return str(config.get("model_type")) in ("qwen3", "qwen3_moe", "qwen3_5_text", "llama")


def frequencies(size: int, parameters: Mapping[str, Any]) -> tuple[np.ndarray, float]:
    """Radians a position, float32 of shape (size / 2,), and the factor of cosine and sine. `size`: of a head.

    Every step is rounded as in transformers: at position 100,000 the last bit of a frequency is 0.01 radians.
    """
    kind = parameters["rope_type"]
    waves = np.power(np.float32(parameters["rope_theta"]), np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    plain = np.float32(1) / waves
    factor = np.float32(parameters.get("factor") or 1.0)
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        return llama3(plain, factor, parameters), 1.0
    if kind == "yarn":
        ramp = yarn_ramp(size, parameters)
        kept = np.float32(1) - ramp
        return np.float32(1) / (factor * waves) * (np.float32(1) - kept) + plain * kept, magnitude(factor, parameters)
    return plain, 1.0


def llama3(plain: np.ndarray, factor: np.float32, parameters: Mapping[str, Any]) -> np.ndarray:
    """Long waves are stretched, short ones stay, those between are mixed."""
    low, high = (np.float32(parameters[f"{name}_freq_factor"]) for name in ("low", "high"))
    context = np.float32(parameters["original_max_position_embeddings"])
    wavelength = np.float32(2 * math.pi) / plain
    stretched = np.where(wavelength > context / low, plain / factor, plain)
    share = (context / wavelength - low) / (high - low)
    mixed = (np.float32(1) - share) * stretched / factor + share * stretched
    between = (wavelength >= context / high) & (wavelength <= context / low)
    return np.where(between, mixed, stretched)


def yarn_ramp(size: int, parameters: Mapping[str, Any]) -> np.ndarray:
    """How far each pair of a head is stretched, 0 to 1: those that turn often are not."""
    base, context = parameters["rope_theta"], parameters["original_max_position_embeddings"]

    def pair(turns: float) -> float:
        return size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair(parameters.get("beta_fast") or 32), pair(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    places = np.arange(size // 2, dtype=np.float32)
    return np.clip((places - np.float32(first)) / np.float32(last - first or 0.001), 0, 1)


def magnitude(factor: Any, parameters: Mapping[str, Any]) -> float:
    """YaRN's factor of cosine and sine."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(float(factor)) + 1.0

    if (given := parameters.get("attention_factor")) is not None:
        return given
    one, all_dims = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return scale(one) / scale(all_dims) if one and all_dims else scale(1.0)
