"""How a Tinker API behaves: its kind, its time limits, and its contract, which is measured or documented."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from harbortrainer.config import CLIP_DEFAULTS, ServerSettings

KEY_HEADER = "X-API-Key"
HEALTH_LIMIT_SEC = 10.0
CALL_LIMIT_SEC = 120.0  # a request without computation
CLOSE_LIMIT_SEC = 15.0  # at the end of a run, when nothing depends on it
ADAM_SETTINGS = ("learning_rate", "beta1", "beta2", "eps", "grad_clip_norm")  # all but weight_decay, which is 0
CLIP_SETTINGS = frozenset(CLIP_DEFAULTS)


@dataclass(frozen=True, slots=True)
class Contract:
    """What the server does with a request. `reduction`: how per-token losses become one gradient.

    sum: over all tokens and datums, as on Tinker. example_mean: each datum's sum divided by its sum of weights, then
    the mean over the datums between two optimizer steps. unknown: measured, and neither of them.
    """

    source: str  # "measured 2026-11-21 ..." or "documents"
    reduction: Literal["sum", "example_mean", "unknown"]
    losses: Mapping[str, frozenset[str]]  # accepted loss -> its settings that have an effect
    adam: Mapping[str, bool | None]  # each of ADAM_SETTINGS: whether it reaches the optimizer; None = unknown
    frozen_samplers: bool | None  # a sampling client keeps its weights, and sampling leaves those in training alone
    prompt_logprobs: bool  # it scores given tokens, with the base model too
    can_sample: bool
    sampler: str = ""  # what computes its samples, as `sampler_name` gives it
    wrong: str = ""  # the rows by which samples are not of the weights in training, or padding shows


TINKER_DOCUMENTS = Contract(
    source="Tinker's documents, 2026-11",
    reduction="sum",
    losses=MappingProxyType(
        {
            "cross_entropy": frozenset(),
            "importance_sampling": frozenset(),
            "ppo": CLIP_SETTINGS,
            "cispo": CLIP_SETTINGS,
        }
    ),
    adam=MappingProxyType(dict.fromkeys(ADAM_SETTINGS, True)),
    frozen_samplers=True,
    prompt_logprobs=True,
    can_sample=True,
)


def sampler_name(about: Mapping[str, Any]) -> str:
    """Return kind and version of what computes samples ("vllm 0.32.0"), by the server's report; "" = not reported."""
    reported = about.get("sampler")
    if not isinstance(reported, Mapping) or not reported.get("kind"):
        return ""
    return f"{reported['kind']} {reported.get('version', '')}".strip()


@dataclass(frozen=True, slots=True)
class ServerKind:
    name: str
    needs_key: bool
    context_limit: int | None  # tokens, when the server does not report it
    architectures: frozenset[str] | None  # model classes it supports, as in config.json; None = those it lists
    answers_of_powers: bool = False  # it compiles for each length of an answer: cut them to powers of two
    families: tuple[str, ...] = ()  # fragments of model names, where config.json cannot be read


CLOUD = ServerKind(name="Tinker cloud", needs_key=True, context_limit=32000, architectures=None)
SELF_HOSTED = ServerKind(
    name="the self-hosted server",
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
    answers_of_powers=True,
    families=("qwen3", "llama-3", "smollm2", "deepseek-v3"),
)


def kind_of(config: ServerSettings) -> ServerKind:
    return SELF_HOSTED if config.backend == "skyrl-tx" else CLOUD


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of calls. `update_sec`: one forward_backward, optim_step or scoring pass; or creating, saving or
    restoring weights.

    `silence_sec`: healthz unanswered. The first call of a shape compiles for up to half a minute on JAX, and a cloud's
    queue may be long.
    """

    update_sec: float = 3600.0
    silence_sec: float = 120.0
