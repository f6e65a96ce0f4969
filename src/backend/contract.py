"""What a Tinker API does with what we send, and the settings that it would not honour.

Known facts of each kind of server (docs/backends.md); nothing is probed here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from src.config import Config
from src.errors import UserError

CLOUD_CONTEXT_LIMIT = 32000


@dataclass(frozen=True, slots=True)
class Contract:
    """`reduction`: how per-token losses become one gradient.

    sum: over all tokens and datums. example_mean: each datum's sum over its sum of weights, then the mean over the
    datums between two optimizer steps.
    """

    name: str
    reduction: Literal["sum", "example_mean"]
    sends_weights: bool  # accepts `weights` (the mask) with policy losses
    losses: frozenset[str]
    clips_gradients: bool  # honours grad_clip_norm
    needs_key: bool
    context_limit: int | None  # tokens, when the server does not say
    families: tuple[str, ...] | None  # name fragments of model families; None = whatever the server lists


TINKER_CLOUD = Contract(
    name="Tinker cloud",
    reduction="sum",
    sends_weights=False,
    losses=frozenset({"cross_entropy", "importance_sampling", "ppo", "cispo"}),
    clips_gradients=True,
    needs_key=True,
    context_limit=CLOUD_CONTEXT_LIMIT,
    families=None,
)
SKYRL_TX = Contract(
    name="the self-hosted server (skyrl, JAX)",
    reduction="example_mean",
    sends_weights=True,
    losses=frozenset({"cross_entropy", "importance_sampling", "ppo", "cispo"}),
    clips_gradients=False,
    needs_key=False,
    context_limit=None,
    families=("qwen3", "llama", "deepseek"),
)


def contract_of(config: Config) -> Contract:
    return SKYRL_TX if config.backend == "skyrl-tx" else TINKER_CLOUD


def check_settings(config: Config, contract: Contract, max_context: int | None = None) -> None:
    """Refuse what this server would ignore or reject. Raises UserError: field, value, reason, fix."""
    problems = list(_problems(config, contract, max_context))
    if problems:
        raise UserError("\n".join(problems))


def _problems(config: Config, contract: Contract, max_context: int | None) -> Iterator[str]:
    if config.loss_fn not in contract.losses:
        yield f"loss_fn={config.loss_fn}: not on {contract.name}; use one of {', '.join(sorted(contract.losses))}"
    if config.grad_clip_norm and not contract.clips_gradients:
        yield f"grad_clip_norm={config.grad_clip_norm}: {contract.name} ignores it; leave it at 0"
    limit = max_context or contract.context_limit
    if limit is not None and config.context_limit > limit:
        fix = f"set context_limit={limit}"
        if config.backend == "tinker":
            fix += ", or train on your own server with backend=skyrl-tx"
        yield f"context_limit={config.context_limit}: {contract.name} takes at most {limit} tokens; {fix}"
