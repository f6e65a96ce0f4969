"""Cross-field checks of a Config, before anything is spent. Pure: no network, no Docker."""

from collections.abc import Iterator

from src.config import Config
from src.errors import UserError
from src.learning.treatment import outcome_problems

_POSITIVE = (
    "lora_rank", "eval_group_size", "batch_size", "group_size", "n_parallel_envs", "max_tokens",
    "context_limit", "learning_rate", "num_substeps", "temperature", "adam_eps", "n_parallel_builds",
    "n_parallel_starts", "env_outage_limit_sec", "max_attempts", "server_outage_limit_sec",
    "sample_timeout_sec", "update_timeout_sec", "save_timeout_sec", "server_silence_sec",
)  # fmt: skip
_NOT_NEGATIVE = (
    "eval_every", "max_steps", "trial_timeout_sec", "max_turns", "proactive_summarization_threshold", "warmup_steps",
    "weight_decay", "grad_clip_norm", "kl_penalty_coef", "save_every", "keep_checkpoints", "seed",
    "keep_every", "keep_best", "eval_timeout_sec",
    "env_starts_per_sec", "quarantine_after", "max_wall_seconds", "max_trials",
    "max_usd", "max_tokens_total", "max_container_hours", "server_usd_per_hour",
)  # fmt: skip


def validate(config: Config) -> None:
    """Raise one UserError with a line for each problem: field, value, fix."""
    problems = [
        *_ranges(config),
        *_tasks(config),
        *_environments(config),
        *outcome_problems(config.outcome_policy),
        *_agent(config),
        *_learning(config),
        *_evaluation(config),
        *_budget(config),
    ]
    if problems:
        raise UserError("\n".join(problems))


def _ranges(config: Config) -> Iterator[str]:
    for name in _POSITIVE:
        if not getattr(config, name) > 0:
            yield f"{name}={getattr(config, name)}: must be above 0"
    for name in _NOT_NEGATIVE:
        if not getattr(config, name) >= 0:
            yield f"{name}={getattr(config, name)}: must be 0 or more"
    for name in ("adam_beta1", "adam_beta2"):
        if not 0 <= getattr(config, name) < 1:
            yield f"{name}={getattr(config, name)}: must be in [0, 1)"


def _tasks(config: Config) -> Iterator[str]:
    registered = [part for part in config.tasks_dir.split(",") if "@" in part and "/" not in part]
    if config.tasks_registry is not None and not registered:
        yield f"tasks_registry={config.tasks_registry}: tasks_dir names no NAME@VERSION of a registry; leave it out"
    if config.curriculum_band is not None:
        low, high = config.curriculum_band
        if not 0 <= low < high <= 1:
            yield f"curriculum_band={low:g},{high:g}: two mean rewards from 0 to 1, the lower one first; None = off"


def _environments(config: Config) -> Iterator[str]:
    if config.n_warm_envs is not None and config.n_warm_envs < 0:
        yield f"n_warm_envs={config.n_warm_envs}: must be 0 or more; None = chosen"
    if config.n_parallel_verifiers is not None and config.n_parallel_verifiers < 1:
        yield f"n_parallel_verifiers={config.n_parallel_verifiers}: must be above 0; None = n_parallel_envs"
    if config.environment_type != "docker":
        usual = Config(model_name="", tasks_dir="")
        for name in ("n_parallel_builds", "env_outage_limit_sec"):
            if (value := getattr(config, name)) != getattr(usual, name):
                yield f"{name}={value}: environment_type={config.environment_type} has no use for it; leave it out"


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
            if getattr(config, name) is not None:
                value = getattr(config, name)
                yield f"{name}={value}: importance_sampling does not clip; use loss_fn=ppo or leave it out"
    low, high = config.clip_low_threshold, config.clip_high_threshold
    if low is not None and not 0 <= low <= 1:
        yield f"clip_low_threshold={low}: a probability ratio between 0 and 1 (0.8 is usual)"
    if high is not None and high < 1:
        yield f"clip_high_threshold={high}: a probability ratio of 1 or more (1.2 is usual)"
    if config.num_substeps > config.batch_size * config.group_size:
        yield (
            f"num_substeps={config.num_substeps}: more optimizer steps than the batch has trajectories "
            f"({config.batch_size} x {config.group_size}); lower it"
        )


def _evaluation(config: Config) -> Iterator[str]:
    if config.keep_best and not (config.eval_tasks or config.eval_split):
        yield f"keep_best={config.keep_best}: no task is held out, so none is the best; set eval_split or eval_tasks"
    if not 0 <= config.eval_split < 1:
        yield f"eval_split={config.eval_split}: a share of the tasks, 0 (none) to below 1"
    if config.eval_tasks and config.eval_split:
        yield f"eval_split={config.eval_split}: eval_tasks names the held-out tasks already; give only one of the two"
    if config.eval_every and not (config.eval_tasks or config.eval_split):
        yield f"eval_every={config.eval_every}: no task is held out; set eval_split or eval_tasks"
    if config.eval_overlap and not (config.eval_tasks or config.eval_split):
        yield "eval_overlap=true: no task is held out; set eval_split or eval_tasks"
    if config.allow_family_overlap and not (config.eval_tasks or config.eval_split):
        yield "allow_family_overlap=true: no task is held out; set eval_split or eval_tasks"
    if config.eval_temperature is not None and config.eval_temperature < 0:
        yield f"eval_temperature={config.eval_temperature}: must be 0 (greedy) or more; None = temperature"


def _budget(config: Config) -> Iterator[str]:
    if config.server_usd_per_hour and config.backend == "tinker":
        yield (
            f"server_usd_per_hour={config.server_usd_per_hour:g}: Tinker cloud is paid by token; leave it out, "
            "or give prices=FILE"
        )
    if config.plan_json is not None and not config.plan:
        yield f"plan_json={config.plan_json}: only a plan is written there; add plan=true"
