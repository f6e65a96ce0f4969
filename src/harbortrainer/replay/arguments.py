"""Arguments of the command `replay`: a run, and the settings to change."""

from collections.abc import Iterator, Sequence
from typing import Any

import chz

from harbortrainer.cli.arguments import read_arguments, validate
from harbortrainer.cli.output import JSON
from harbortrainer.config import FIELDS, Config, LossFn, LossNorm
from harbortrainer.errors import refuse
from harbortrainer.learning.trajectory import Outcome
from harbortrainer.learning.treatment import outcome_policy, outcome_problems
from harbortrainer.setting import field, settings

RUN = "None = as in the run"


@chz.chz
class ReplayArgs:
    run_dir: str = field(doc="folder of the run")
    advantage: str | None = field(None, RUN)
    normalize_advantages_by_std: bool | None = field(None, RUN)
    remove_constant_reward_groups: bool | None = field(None, RUN)
    outcome_policy: dict[str, Any] = field({}, "outcome_policy.OUTCOME=train, mask or a reward; others as in the run")
    loss_norm: LossNorm | None = field(None, RUN)
    num_substeps: int | None = field(None, RUN)
    observation_loss_coef: float | None = field(None, RUN)
    kl_penalty_coef: float | None = field(None, f"0 = without the penalty; no other value can be replayed; {RUN}")
    loss_fn: LossFn | None = field(None, f"changes no datum, only the share that is clipped; {RUN}")
    clip_thresholds: tuple[float, float] | None = field(None, RUN)
    steps: tuple[int, ...] = field((), "global_step of each step to replay, a,b,c; empty = all")
    json: str | None = field(None, JSON)


SETTINGS = tuple(name for name in settings(ReplayArgs) if name in FIELDS and name != "json")


def parse(argv: Sequence[str]) -> ReplayArgs:
    """Raises UserError for a wrong argument, or a setting that no replay can change."""
    names = [word.lstrip("-").split("=", 1)[0].split(".", 1)[0] for word in argv if "=" in word]
    others = [name for name in names if name in FIELDS and name not in settings(ReplayArgs)]
    why = "changes none of the recorded trials' advantages and datums: a replay has only the trials on disk"
    refuse(f"{name}: {why}; leave it out, or start a run with it" for name in others)
    return read_arguments(ReplayArgs, argv, ("run_dir",))


def changed(config: Config, args: ReplayArgs) -> Config:
    """Return the settings of a step, changed by `args`. Raises UserError for a change that cannot be replayed."""
    given = {name: value for name in SETTINGS if (value := getattr(args, name)) not in (None, {})}
    if args.loss_fn in ("importance_sampling", "dppo"):  # it has no thresholds
        given = {"clip_thresholds": None} | given
    policy = {**config.outcome_policy, **args.outcome_policy}
    refuse(outcome_problems(args.outcome_policy) or _impossible(config, args))
    now = chz.replace(config, **given | {"outcome_policy": policy})
    validate(now)
    return now


def _impossible(config: Config, args: ReplayArgs) -> Iterator[str]:
    if args.kl_penalty_coef not in (None, 0, config.kl_penalty_coef):
        yield (
            f"kl_penalty_coef={args.kl_penalty_coef}: needs the logprobs of kl_reference, which no run stores; give 0, "
            f"or leave it as it was ({config.kl_penalty_coef:g})"
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
