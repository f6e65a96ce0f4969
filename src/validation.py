"""Checks of a Config before anything is spent: those of each field, and those between fields. No network, no Docker."""

from collections.abc import Iterator

from src.config import Config
from src.errors import UserError
from src.learning.treatment import outcome_problems
from src.setting import problems, shown


def validate(config: Config) -> None:
    """Raise one UserError with a line for each problem: field, value, fix."""
    found = [
        *problems(config),
        *outcome_problems(config.outcome_policy),
        *_agent(config),
        *_learning(config),
        *_evaluation(config),
        *_output(config),
    ]
    if found:
        raise UserError("\n".join(found))


def _agent(config: Config) -> Iterator[str]:
    if config.max_tokens >= config.context_limit:
        yield (
            f"max_tokens={config.max_tokens}: leaves no room for a prompt in context_limit={config.context_limit}; "
            "lower max_tokens or raise context_limit"
        )
    if config.enable_summarize and config.proactive_summarization_threshold >= config.context_limit:
        yield (
            f"proactive_summarization_threshold={config.proactive_summarization_threshold}: not below "
            f"context_limit={config.context_limit}, every turn would be summarised; lower it"
        )


def _learning(config: Config) -> Iterator[str]:
    if config.n_epochs is not None and config.n_epochs < 1:
        yield f"n_epochs={config.n_epochs}: must be above 0; None = as many as max_steps takes, else 1"
    if config.group_size == 1:
        yield "group_size=1: a group of one has no advantage over itself, nothing would be learned; use 2 or more"
    if config.loss_fn == "importance_sampling":
        for name in ("clip_low_threshold", "clip_high_threshold"):
            if (value := getattr(config, name)) is not None:
                yield f"{name}={value}: importance_sampling does not clip; use loss_fn=ppo or leave it out"
    if config.num_substeps > config.batch_size * config.group_size:
        yield (
            f"num_substeps={config.num_substeps}: more optimizer steps than the batch has trajectories "
            f"({config.batch_size} x {config.group_size}); lower it"
        )


def _evaluation(config: Config) -> Iterator[str]:
    if config.eval_tasks and config.eval_split:
        yield f"eval_split={config.eval_split}: eval_tasks names the held-out tasks already; give only one of the two"
    if not config.eval_tasks and not config.eval_split:
        for name in ("eval_every", "eval_overlap", "allow_family_overlap", "keep_best"):
            if value := getattr(config, name):
                yield f"{name}={shown(value)}: no task is held out; set eval_split or eval_tasks"


def _output(config: Config) -> Iterator[str]:
    if config.server_usd_per_hour and config.backend == "tinker":
        yield (
            f"server_usd_per_hour={config.server_usd_per_hour:g}: Tinker cloud is paid by token; leave it out, "
            "or give prices=FILE"
        )
    if config.json is not None and not config.plan:
        yield f"json={config.json}: only a plan is written there; add --dry-run"
