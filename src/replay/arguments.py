"""What `python -m src.replay` is told: a run, and which of its settings shall be others."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import chz

from src.command_line import read_arguments
from src.config import Config, LossFn
from src.config_changes import FIXED, INTERVENTIONS
from src.doctor_output import JSON
from src.errors import UserError
from src.learning.trajectory import Outcome
from src.learning.treatment import outcome_policy, outcome_problems
from src.run.directory import RunDirectory
from src.validation import validate

HEAD = (
    "python -m src.replay RUN_DIR field=value ...   what other settings had made of a run's trials; exit 1 if what the "
    "run was sent cannot be rebuilt"
)
RUN = "None = as in the run"


@chz.chz
class ReplayArgs:
    advantage_baseline: Literal["mean", "leave_one_out"] | None = chz.field(default=None, doc=RUN)
    normalize_advantages_by_std: bool | None = chz.field(default=None, doc=RUN)
    remove_constant_reward_groups: bool | None = chz.field(default=None, doc=RUN)
    outcome_policy: dict[str, Any] = chz.field(
        default_factory=dict, doc="outcome_policy.OUTCOME=train, mask or a reward; others as in the run"
    )
    loss_norm: Literal["token_mean", "sequence_mean", "token_sum"] | None = chz.field(default=None, doc=RUN)
    num_substeps: int | None = chz.field(default=None, doc=RUN)
    kl_penalty_coef: float | None = chz.field(
        default=None, doc="0 = without the penalty; another one needs logprobs that no run stores; None = as in the run"
    )
    loss_fn: LossFn | None = chz.field(default=None, doc=f"changes no datum, only what is clipped; {RUN}")
    clip_low_threshold: float | None = chz.field(default=None, doc=RUN)
    clip_high_threshold: float | None = chz.field(default=None, doc=RUN)
    steps: tuple[int, ...] = chz.field(default=(), doc="steps as metrics.jsonl counts them, a,b,c; () = all")
    json: str | None = chz.field(default=None, doc=JSON)


SETTINGS = tuple(name for name in chz.chz_fields(ReplayArgs) if name not in ("steps", "json"))
_ON_SERVER = (
    "learning_rate", "lr_schedule", "warmup_steps", "adam_beta1", "adam_beta2", "adam_eps", "weight_decay",
    "grad_clip_norm",
)  # fmt: skip
_SAMPLING = {*FIXED, *INTERVENTIONS, "tasks_dir", "max_attempts", "quarantine_after"}.difference(_ON_SERVER, SETTINGS)


def parse(argv: Sequence[str]) -> tuple[RunDirectory, ReplayArgs]:
    """Raises UserError, SystemExit(0) for --help."""
    folders = [arg for arg in argv if "=" not in arg and not arg.startswith("-")]
    rest = [arg for arg in argv if arg not in folders]
    problems = list(_not_replayed(rest))
    if problems:
        raise UserError("\n".join(problems))
    args = read_arguments(ReplayArgs, rest, HEAD)
    if len(folders) != 1:
        raise UserError("RUN_DIR: give the folder of one run: python -m src.replay RUN_DIR field=value …")
    run = RunDirectory(Path(folders[0]).expanduser().resolve())
    if not run.config.is_file():
        raise UserError(f"{folders[0]}: no run directory ({run.config.name} is missing); give the folder that holds it")
    return run, args


def changed(config: Config, args: ReplayArgs) -> Config:
    """The settings of a step with those of `args` instead. Raises UserError for what cannot be replayed."""
    given = {name: value for name in SETTINGS if (value := getattr(args, name)) not in (None, {})}
    if args.loss_fn == "importance_sampling":  # the run's thresholds mean nothing to it
        given = dict.fromkeys(("clip_low_threshold", "clip_high_threshold")) | given
    policy = {**config.outcome_policy, **args.outcome_policy}
    problems = [*outcome_problems(args.outcome_policy)] or [*_impossible(config, args)]
    if problems:
        raise UserError("\n".join(problems))
    now = chz.replace(config, **given | {"outcome_policy": policy})
    validate(now)
    return now


def _impossible(config: Config, args: ReplayArgs) -> Iterator[str]:
    if args.kl_penalty_coef not in (None, 0, config.kl_penalty_coef):
        yield (
            f"kl_penalty_coef={args.kl_penalty_coef}: needs the base model's logprobs, which no run stores; give 0, or "
            f"leave it as it was ({config.kl_penalty_coef:g})"
        )
    before, now = outcome_policy(config.outcome_policy), outcome_policy(config.outcome_policy | args.outcome_policy)
    for name, value in args.outcome_policy.items():
        if now.replaces(Outcome(name)) != before.replaces(Outcome(name)):
            why = (
                "the fresh trials that it asks for were never run"
                if now.replaces(Outcome(name))
                else "the run replaced such trials and kept none of their tokens"
            )
            yield f"outcome_policy.{name}={value}: {why}; leave it out"


def _not_replayed(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        name = argument.lstrip("-").split("=", 1)[0].split(".", 1)[0]
        if name in _SAMPLING:
            yield f"{name}: with another value other trials would have been run; a replay has only those on disk"
        elif name in _ON_SERVER:
            yield f"{name}: changes what the server makes of the datums, not the datums; that needs a run"
        elif name in chz.chz_fields(Config) and name not in SETTINGS:
            yield f"{name}: has no part in advantages and datums; leave it out"
