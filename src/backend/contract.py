"""What a Tinker API does with what we send, and the settings that it would not honour.

Known facts of each kind of server, checked against the live one in tests/integration; nothing is probed here.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from src.config import Config
from src.errors import UserError

CLOUD_CONTEXT_LIMIT = 32000

log = logging.getLogger("harbortrainer")


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
    decays_every_adapter: bool  # weight_decay of one adapter shrinks those of all other users
    needs_key: bool
    context_limit: int | None  # tokens, when the server does not say
    architectures: frozenset[str] | None  # model classes it has, as in config.json; None = whatever it lists
    families: tuple[str, ...] = ()  # fragments of model names, where config.json cannot be read


TINKER_CLOUD = Contract(
    name="Tinker cloud",
    reduction="sum",
    sends_weights=False,
    losses=frozenset({"cross_entropy", "importance_sampling", "ppo", "cispo"}),
    clips_gradients=True,
    decays_every_adapter=False,
    needs_key=True,
    context_limit=CLOUD_CONTEXT_LIMIT,
    architectures=None,
)
SKYRL_TX = Contract(
    name="the self-hosted server (skyrl, JAX)",
    reduction="example_mean",
    sends_weights=True,
    losses=frozenset({"cross_entropy", "importance_sampling", "ppo", "cispo"}),
    clips_gradients=False,
    decays_every_adapter=True,
    needs_key=False,
    context_limit=None,
    architectures=frozenset(
        {
            "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM",
            "Qwen3_5ForCausalLM",
            "Qwen3_5ForConditionalGeneration",
            "LlamaForCausalLM",
            "Llama3ForCausalLM",
            "DeepseekV3ForCausalLM",
            "Glm4MoeLiteForCausalLM",
        }
    ),
    families=("qwen3", "llama-3", "smollm2", "deepseek-v3"),
)


def contract_of(config: Config) -> Contract:
    return SKYRL_TX if config.backend == "skyrl-tx" else TINKER_CLOUD


def check_settings(config: Config, contract: Contract, max_context: int | None = None) -> None:
    """Refuse what this server would ignore or reject; warn of side effects. Raises UserError: field, reason, fix."""
    problems = list(_problems(config, contract, max_context))
    if problems:
        raise UserError("\n".join(problems))
    if config.weight_decay and contract.decays_every_adapter:
        log.warning(
            "weight_decay=%s: %s decays the adapters of every other user with it; share the server with nobody",
            config.weight_decay,
            contract.name,
        )


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
