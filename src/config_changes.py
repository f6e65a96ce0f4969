"""What a resumed run may change. Every field of the configuration is in exactly one of these classes."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import chz

from src.config import Config
from src.errors import UserError
from src.run.directory import RunDirectory, read_json
from src.run.jsonl import append_line, cut_torn_line, read_lines

# Where the run is and how it was asked for. Nothing is compared.
ADDRESS = ("logs_dir", "run_name", "resume", "plan", "plan_json")

# What is trained, on which tasks, in which order, from which seed: another value is another run. Refused.
FIXED = (
    "backend", "model_name", "lora_rank", "enable_thinking", "task_weights", "eval_split", "eval_tasks",
    "allow_family_overlap", "batch_size", "group_size", "seed", "curriculum_band",
)  # fmt: skip

# What the rewards of a trial depend on: one group has one setting of each.
TRIAL_SETTINGS = (
    "temperature", "max_turns", "max_tokens", "context_limit", "command_wait", "enable_summarize",
    "proactive_summarization_threshold", "trial_timeout_sec", "environment_type", "environment_kwargs",
)  # fmt: skip

# What trials, updates or evaluation mean: a user may intervene. From the first step that was not trained on yet;
# steps that are made again keep theirs. Told loudly.
INTERVENTIONS = (
    *TRIAL_SETTINGS, "eval_group_size", "eval_temperature", "outcome_policy", "learning_rate", "lr_schedule",
    "warmup_steps",
    "adam_beta1", "adam_beta2", "adam_eps", "weight_decay", "grad_clip_norm", "loss_fn", "clip_low_threshold",
    "clip_high_threshold", "loss_norm", "num_substeps", "advantage_baseline", "normalize_advantages_by_std",
    "remove_constant_reward_groups", "kl_penalty_coef",
)  # fmt: skip

# When it is over. Noted; a learning rate that decays follows the new length from that step on.
LENGTH = ("n_epochs", "max_steps")

# How fast, where to, what is kept. Taken and noted. (Whether the tasks are the same is asked of their files.)
HARMLESS = (
    "skyrl_tx_url", "tinker_base_url", "tasks_dir", "allow_broken_tasks", "eval_every", "n_parallel_envs",
    "n_warm_envs", "n_parallel_builds", "n_parallel_starts", "n_parallel_verifiers", "env_starts_per_sec",
    "env_outage_limit_sec", "eval_timeout_sec", "max_attempts", "quarantine_after", "sample_timeout_sec",
    "update_timeout_sec", "save_timeout_sec", "server_silence_sec", "server_outage_limit_sec", "on_stop",
    "max_wall_seconds", "max_trials", "save_every", "keep_checkpoints", "keep_every", "keep_best", "wandb_project",
    "wandb_name", "display",
    "tasks_registry", "tasks_include", "tasks_exclude", "eval_overlap",
    "max_usd", "max_tokens_total", "max_container_hours", "prices", "server_usd_per_hour",
)  # fmt: skip

FIELDS = tuple(chz.chz_fields(Config))
REQUIRED = ("model_name", "tasks_dir")  # no default


@dataclass(frozen=True, slots=True)
class Change:
    field: str
    before: Any  # as JSON has it
    now: Any


class ConfigHistory:
    """The configuration that a run was started with, and what was changed from which step on.

    Raises UserError when a file of it is damaged.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        saved = read_json(run.config)
        self._start = {name: value for name, value in saved.items() if name in FIELDS and name not in ADDRESS}
        if lacking := [name for name in REQUIRED if name not in saved]:
            why = f"{run.config.name} is damaged (no {', '.join(lacking)})"
            raise UserError(f"resume={run.path}: {why}; restore it or start a new run")
        cut_torn_line(run.config_changes)
        self._records = read_lines(run.config_changes)

    @property
    def latest(self) -> dict[str, Any]:
        """Values of the last process, by field; those of ADDRESS left out."""
        return self._values(len(self._records))

    def changes(self, config: Config) -> list[Change]:
        """What `config` has otherwise than the last process. Raises UserError for a fixed field."""
        before, now = self.latest, to_json(config)
        changed = [Change(name, before[name], now[name]) for name in FIELDS if name in before]
        changed = [change for change in changed if change.before != change.now]
        for change in changed:
            if change.field in FIXED:
                raise UserError(
                    f"{change.field}={_shown(change.now)}: {self._run.path} was started with "
                    f"{change.field}={_shown(change.before)}; leave it out or start a new run"
                )
        return changed

    def record(self, changes: list[Change], from_step: int) -> None:
        """Write down what holds from `from_step` on."""
        if changes:
            values = {change.field: {"before": change.before, "now": change.now} for change in changes}
            record = {"time": round(time.time(), 3), "from_step": from_step, "changes": values}
            append_line(self._run.config_changes, record)
            self._records.append(record)

    def configs(self) -> list[tuple[int, Config]]:
        """(first step, configuration) in order of time; the last one is in force."""
        steps = [0, *(record["from_step"] for record in self._records)]
        return [(step, from_json(self._values(n))) for n, step in enumerate(steps)]

    def _values(self, n_records: int) -> dict[str, Any]:
        values = dict(self._start)
        for record in self._records[:n_records]:
            values |= {name: change["now"] for name, change in record["changes"].items() if name in FIELDS}
        return values


def note(change: Change, from_step: int) -> str:
    """One line for a change that is taken."""
    text = f"{change.field}={_shown(change.now)}, was {_shown(change.before)}"
    if change.field in INTERVENTIONS:
        return f"CHANGED from step {from_step + 1} on: {text}; its steps before and after are two experiments"
    if change.field in LENGTH:
        return f"{text}; a learning rate that decays follows the new length from step {from_step + 1} on"
    return text


def to_json(config: Config) -> dict[str, Any]:
    """The configuration as plain JSON values."""
    return json.loads(json.dumps(chz.asdict(config)))


def from_json(values: Mapping[str, Any]) -> Config:
    """Fields that an older version did not save have their defaults."""
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return Config(**fields)


def _shown(value: Any) -> str:
    return str(value) if value is None or isinstance(value, str) else json.dumps(value)
