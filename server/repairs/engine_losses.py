"""gspo and dro by Tinker's formulas, and several targets a token, (N, K), for cross_entropy.

Upstream: skyrl/tinker/loss_fns.py has neither loss; skyrl/backends/jax.py takes one target a token.
"""

# pyright: reportMissingImports=false
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from skyrl.backends import jax as backend
from skyrl.tinker import loss_fns, types

from repairs import engine_tied, losses

DEFAULTS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2, "beta": losses.BETA}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Settings:
    """loss_fn_config of each datum, shape (B,), and its ratio mask, (B, T). Takes the place of LossFnConfig."""

    clip_low_threshold: Any
    clip_high_threshold: Any
    beta: Any
    ratio_mask: Any


def settings(configs: list[dict[str, float] | None], ratio_mask: np.ndarray) -> Settings:
    """On the host."""
    given = {name: [float((one or {}).get(name, value)) for one in configs] for name, value in DEFAULTS.items()}
    return Settings(**{name: np.asarray(values, np.float32) for name, values in given.items()}, ratio_mask=ratio_mask)


def of_thresholds(clip_low_threshold: Any, clip_high_threshold: Any) -> Settings:
    """For skyrl's own _model_pass, where engine_shapes does not take its place: no beta but the default, no mask."""
    beta = np.full(clip_low_threshold.shape, losses.BETA, np.float32)
    return Settings(clip_low_threshold, clip_high_threshold, beta, np.zeros((*beta.shape, 1), np.float32))


def settings_like(row: Any, table: Any) -> Settings:
    """What stands for arrays of one value, and of one for each token, of a datum: shapes or shardings."""
    return Settings(**dict.fromkeys(DEFAULTS, row), ratio_mask=table)


def gspo(logprobs: jax.Array, weights: jax.Array, sampled: jax.Array, advantages: jax.Array, given: Settings) -> Any:
    """Each token carries the geometric mean of the ratios in the mask, and the gradient of its own logprob."""
    mask = given.ratio_mask.reshape(*given.ratio_mask.shape, *(1,) * (logprobs.ndim - 1)) != 0
    fixed = jax.lax.stop_gradient(logprobs)
    mean = jnp.where(mask, fixed - sampled, 0.0).sum() / jnp.maximum(mask.sum(), 1)
    ratio = jnp.exp(mean + logprobs - fixed)
    clipped = jnp.clip(ratio, given.clip_low_threshold, given.clip_high_threshold)
    return -loss_fns.safe_loss_mask(jnp.minimum(ratio * advantages, clipped * advantages), weights)


def dro(logprobs: jax.Array, weights: jax.Array, sampled: jax.Array, advantages: jax.Array, given: Settings) -> Any:
    penalty = 0.5 * given.beta * (logprobs - sampled) ** 2
    return -loss_fns.safe_loss_mask(logprobs * advantages - penalty, weights)


def target_logprobs(model: Any, hidden: jax.Array, targets: jax.Array, adapters: jax.Array) -> jax.Array:
    """Of targets (B, T) or (B, T, K); the logits of a token are computed once."""
    if targets.ndim == 2:
        return engine_tied.logprobs(model, hidden, targets, adapters)
    several = jax.vmap(model.compute_logprobs, in_axes=(None, 2, None), out_axes=2)
    return several(hidden, targets, adapters)


def apply() -> None:
    if "dro" not in loss_fns.LOSS_FUNCTION_MAP:
        losses.apply()
        backend.LossFnConfig = of_thresholds
        loss_fns.LOSS_FUNCTION_MAP.update(gspo=gspo, dro=dro)
        names = sorted(types.LOSS_TYPES, key=types.LOSS_TYPES.__getitem__)
        loss_fns.LOSS_FUNCTIONS[:] = [loss_fns.LOSS_FUNCTION_MAP[name] for name in names]
