"""Compares the run's settings with the server's contract: each is applied by it, compensated here, or refused.

One configuration means the same training on every server; all differences are in this module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harbortrainer.backend.contract import ADAM_SETTINGS, CLIP_SETTINGS, Contract, ServerKind
from harbortrainer.commands import command
from harbortrainer.config import CLIP_DEFAULTS, Config, RunSettings
from harbortrainer.errors import UserError
from harbortrainer.learning.off_policy import CAP
from harbortrainer.sft_config import SftConfig

ADAM = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0}
OFF = {"grad_clip_norm": 0.0}  # a server need not support it while it is off
UNKNOWN = "{} neither sums nor averages the loss in a known way, so the step size would be a guess"
DOCTOR = f"see what it does with {command('doctor')}"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run trains with. `notes`: a line for each way in which this server differs."""

    loss: dict[str, Any]
    optimizer: dict[str, Any]
    notes: tuple[str, ...]


def sent_loss(config: Config) -> str:
    """`loss_fn` as sent: dppo is importance_sampling of the tokens that it leaves."""
    return "importance_sampling" if config.loss_fn == "dppo" else config.loss_fn


def loss_settings(config: Config) -> dict[str, float] | None:
    """`loss_fn_config` as sent: both thresholds for a loss that clips, None for another."""
    if sent_loss(config) == "importance_sampling":
        return None
    return dict(zip(CLIP_DEFAULTS, config.clip_thresholds or CLIP_DEFAULTS.values(), strict=True))


def adam_settings(config: RunSettings) -> dict[str, float]:
    """Return Adam's settings as sent, by the SDK's names; `learning_rate` is the schedule's peak."""
    return {
        "learning_rate": config.learning_rate,
        **ADAM,
        "grad_clip_norm": config.grad_clip_norm,
    }


def agree(config: Config, kind: ServerKind, contract: Contract, max_context: int | None = None) -> Terms:
    """Get terms of this run on this server. Raises UserError: field, value, reason and fix of all that it cannot do."""
    problems = [*_loss_problems(config, kind, contract), *_optimizer_problems(config, kind, contract)]
    problems += [*_server_problems(config, kind, contract), *_wrong(config, kind, contract)]
    problems += _late_sample_problems(config, kind, contract)
    problems += filter(None, [context_problem(config, kind, max_context)])
    if problems:
        raise UserError("\n".join(problems))
    return Terms(_loss(config, contract), _optimizer(config), tuple(_notes(config, kind, contract)))


def agree_on_sft(config: SftConfig, kind: ServerKind, contract: Contract, max_context: int | None = None) -> Terms:
    """Return the terms of a run of fine-tuning. Raises UserError like `agree`."""
    problems = [*_optimizer_problems(config, kind, contract), *_wrong(config, kind, contract)]
    problems += filter(None, [context_problem(config, kind, max_context)])
    if "cross_entropy" not in contract.losses:
        problems.append(f"backend={config.backend}: {kind.name} refuses the loss cross_entropy; {DOCTOR}")
    if contract.reduction == "example_mean" and config.loss_norm != "sequence_mean":
        problems.append(
            f"loss_norm={config.loss_norm}: {kind.name} takes the mean of the conversations' means, whatever their "
            "weights; set loss_norm=sequence_mean"
        )
    if len(config.train_on) > 1 and contract.reduction != "sum":
        problems.append(f"train_on={','.join(config.train_on)}: {kind.name} does not sum the loss; train on answers")
    if contract.reduction == "unknown":
        problems.append(f"loss_norm={config.loss_norm}: {UNKNOWN.format(kind.name)}; {DOCTOR}")
    if problems:
        raise UserError("\n".join(problems))
    loss = {"loss_fn": "cross_entropy", "loss_norm": config.loss_norm, "server_reduction": contract.reduction}
    if len(config.train_on) > 1:
        loss |= {"train_on": list(config.train_on), "observation_loss_coef": config.observation_loss_coef}
    return Terms(loss, _optimizer(config), tuple(_optimizer_notes(config, kind, contract)))


def _loss_problems(config: Config, kind: ServerKind, contract: Contract) -> Iterator[str]:
    if config.loss is not None:
        if "cross_entropy" not in contract.losses or contract.reduction != "sum":
            yield f"loss={config.loss}: needs the loss cross_entropy, summed, which {kind.name} does not give; {DOCTOR}"
        return
    if sent_loss(config) not in contract.losses:
        offered = ", ".join(sorted(set(contract.losses) - {"cross_entropy"})) or "none known"
        yield f"loss_fn={config.loss_fn}: not on {kind.name}; use one of: {offered}"
        return
    for name, value in sorted((loss_settings(config) or {}).items()):
        if name in contract.losses[sent_loss(config)]:
            continue
        yield f"{name}={value}: without effect on {kind.name} with loss_fn={config.loss_fn}; {DOCTOR}"
    if contract.reduction == "unknown":
        yield f"loss_norm={config.loss_norm}: {UNKNOWN.format(kind.name)}; {DOCTOR}"
    elif config.observation_loss_coef and contract.reduction != "sum":
        yield f"observation_loss_coef={config.observation_loss_coef}: {kind.name} does not sum the loss; set it to 0"


def _optimizer_problems(config: RunSettings, kind: ServerKind, contract: Contract) -> Iterator[str]:
    for name, value in adam_settings(config).items():
        if contract.adam.get(name) is False and value != OFF.get(name):
            fix = "leave it at 0" if name in OFF else "train on a server that applies it"
            yield f"{name}={value}: {kind.name} does not apply it ({contract.source}); {fix}"


def _server_problems(config: Config, kind: ServerKind, contract: Contract) -> Iterator[str]:
    if not contract.can_sample:
        yield (
            f"backend={config.backend}: {kind.name} trains, but this SDK cannot sample from it; start one with "
            f"scripts/start_skyrl_tx.sh {config.model_name} TP (without SKYRL_TX_REPAIRS=none)"
        )
    if config.kl_penalty_coef and not contract.prompt_logprobs:
        yield (
            f"kl_penalty_coef={config.kl_penalty_coef}: {kind.name} gives no logprobs of given tokens, so there is no "
            "reference to compare with; set it to 0"
        )


def _wrong(config: RunSettings, kind: ServerKind, contract: Contract) -> Iterator[str]:
    if contract.wrong:
        yield (
            f"model_name={config.model_name}: {kind.name} computes it wrongly, so that another policy would learn than "
            f"is sampled ({contract.wrong}); no setting mends that: take another model or server; {DOCTOR}"
        )


def _late_sample_problems(config: Config, kind: ServerKind, contract: Contract) -> Iterator[str]:
    if contract.frozen_samplers:
        return
    if config.hosts != "none":
        yield (
            f"hosts={config.hosts}: {kind.name} may change the weights in training when a host that was cut off "
            "samples late; train on this project's server or on Tinker, or set it to none"
        )
    if not config.max_steps_off_policy:
        return
    reason = "overwrites the weights in training when an older sampler is sampled"
    if contract.frozen_samplers is None:
        reason = "may change the weights in training when it samples: that could not be measured"
    yield (
        f"max_steps_off_policy={config.max_steps_off_policy}: {kind.name} {reason}, so no trial may run during an "
        "update; set it to 0"
    )


def context_problem(config: RunSettings, kind: ServerKind, max_context: int | None) -> str | None:
    """Return field, value, reason and fix where the server takes fewer tokens; None = it takes as many."""
    limit = max_context or kind.context_limit
    if limit is None or config.context_limit <= limit:
        return None
    fix = f"set context_limit={limit}"
    if kind.needs_key:
        fix += ", or train on your own server with backend=skyrl-tx"
    return f"context_limit={config.context_limit}: {kind.name} takes at most {limit} tokens; {fix}"


def _loss(config: Config, contract: Contract) -> dict[str, Any]:
    dppo = config.loss is None and config.loss_fn == "dppo"
    return {
        "loss_fn": config.loss_fn if config.loss is None else config.loss,
        **(loss_settings(config) or dict.fromkeys(CLIP_SETTINGS)),
        "reduction": "sum over tokens and datums",
        "server_reduction": contract.reduction,
        "loss_norm": config.loss_norm,
        "advantage": config.advantage,
        "kl_penalty_coef": config.kl_penalty_coef,
        "kl_reference": config.kl_reference,
        **_correction(config),
        **(dict(zip(("divergence", "threshold"), config.dppo, strict=True)) if dppo else {}),
        **({"observation_loss_coef": config.observation_loss_coef} if config.observation_loss_coef else {}),
    }


def _correction(config: Config) -> dict[str, Any]:
    """How a run that trains on older samples corrects for it."""
    if not config.max_steps_off_policy:
        return {}
    how = {"max_steps_off_policy": config.max_steps_off_policy}
    return how | ({"importance_cap": CAP} if config.loss_fn == "importance_sampling" else {})


def _optimizer(config: RunSettings) -> dict[str, Any]:
    schedule = {"lr_schedule": config.lr_schedule, "warmup_steps": config.warmup_steps}
    return {"name": "AdamW", **adam_settings(config), **schedule}


def _notes(config: Config, kind: ServerKind, contract: Contract) -> Iterator[str]:
    if config.temperature != 1:
        yield (
            f"temperature={config.temperature:g}: trials are sampled at {config.temperature:g}, but {kind.name} trains "
            "the policy of temperature 1: logprobs, ratios and KL are of temperature 1, and nothing corrects for the "
            "difference between the two distributions; temperature=1 has none"
        )
    if not contract.prompt_logprobs:
        yield f"kl/start: {kind.name} gives no logprobs of given tokens, so no step measures the drift from the start"
    if contract.reduction == "example_mean":
        yield (
            f"loss: {kind.name} averages over tokens and datums; advantages are scaled up so that each step is the "
            "sum's, as on Tinker"
        )
    if contract.frozen_samplers is False:
        yield (
            f"sampling: on {kind.name} an older sampler would overwrite the weights in training; each is sampled only "
            "until the next step"
        )
    if contract.sampler.startswith("vllm"):
        yield (
            f"sampler: {kind.name} samples with {contract.sampler}, another engine than it trains with; rounding lies "
            "between them (logprobs/kl_sampler_trainer), and a seed gives other samples than with its JAX sampler"
        )
    yield from _optimizer_notes(config, kind, contract)


def _optimizer_notes(config: RunSettings, kind: ServerKind, contract: Contract) -> Iterator[str]:
    for name in ADAM_SETTINGS:
        if contract.adam.get(name) is None:
            yield f"{name}: whether {kind.name} applies it could not be measured; {DOCTOR}"
