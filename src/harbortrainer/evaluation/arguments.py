"""Arguments of the command `evaluate`; fields that `train` has too share its names, defaults and meaning."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import chz

from harbortrainer.cli.arguments import given, read_arguments, validate
from harbortrainer.config import ADDRESS, FIXED, Config, TrialSettings
from harbortrainer.durable.files import read_json
from harbortrainer.errors import UserError, refuse
from harbortrainer.model_file import with_texts
from harbortrainer.run.config_changes import tuples
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.earlier_settings import current, removed
from harbortrainer.setting import COUNTED, FROM_0, Resume, field, problems, settings

log = logging.getLogger("harbortrainer")
TRIALS = 8  # of each task, where its difficulty is measured
ENDING = ".json"


@chz.chz
class EvalArgs(TrialSettings):
    # -- policies
    model_name: str | None = field(None, "base model; None = that of checkpoint's run", resume=FIXED)
    checkpoint: str | None = field(
        None,
        "RUN_DIR (its last), RUN_DIR@STEP, tinker://…, or oracle = each task's own solution; None = the base model",
        resume=FIXED,
    )
    policy: str | None = field(
        None,
        "JSON file of a policy behind an OpenAI-compatible endpoint, in the place of checkpoint; model_name then names "
        "the chat template and tokens in which its trials are kept; None = checkpoint",
        resume=FIXED,
    )
    against: str | None = field(
        None,
        "second policy, compared on the same tasks: a value as for checkpoint or policy, or base; None = none",
        resume=FIXED,
    )

    # -- tasks
    allow_family_overlap: bool = field(
        False,
        "true = also evaluate tasks whose family the checkpoint was trained on; false = refuse them",
        resume=FIXED,
    )

    # -- trials
    trials: int = field(4, "trials a task", check=COUNTED, resume=FIXED)
    temperature: float = field(1.0, "sampling temperature, 0 = greedy", check=FROM_0, resume=FIXED)
    k: tuple[int, ...] = field((1,), "pass@k to report, a,b; each at most trials")
    pass_reward: float = field(1.0, "least reward of a trial that counts as passed")
    seed: int = field(0, "seed of sampling", resume=FIXED)
    retry_ungraded: bool = field(False, "true = a continued evaluation repeats the trials that faults left ungraded")

    # -- limits
    max_usd: float = field(
        0.0,
        "USD of all requests to the endpoint of policy, by its prices, at which it stops; 0 = no limit",
        check=FROM_0,
    )
    # -- output
    out: str | None = field(
        None,
        "directory of the results, continued where it exists; None = a new one in logs_dir",
        resume=ADDRESS,
    )


FIELDS = settings(EvalArgs)
FREE = {name for name, one in FIELDS.items() if one.resume in (ADDRESS, Resume.HARMLESS)}


@chz.chz
class ShowArgs:
    dir: str = field(doc="directory of a run or an evaluation")
    trial: str | None = field(None, "name of the trial to show in full; None = a table of all trials")


@chz.chz
class ExportArgs:
    dir: str = field(doc="directory of a run or an evaluation")
    step: int | None = field(
        None, "export every trial of this step's batches; None = evaluations, and chosen trials of training"
    )


def parse(argv: Sequence[str], words: Sequence[str] = ()) -> EvalArgs:
    """`name=value` over the saved values of an evaluation in out=DIR; `words` need no name. Raises UserError."""
    saved = _saved(given(argv, "out"))
    args = with_texts(read_arguments(EvalArgs, argv, words, saved))
    for name in FIELDS:
        if name in saved and name not in FREE and getattr(args, name) != saved[name]:
            raise UserError(
                f"{name}={getattr(args, name)}: {args.out} was started with {name}={saved[name]}; leave it out or "
                "choose another out"
            )
    check(args)
    return args


def check(args: EvalArgs) -> None:
    """Raise UserError for values that cannot be, alone or together."""
    refuse([*problems(args), *_between(args)])
    validate(trainer_config(args, args.model_name or "?"))


def trainer_config(args: EvalArgs, model_name: str) -> Config:
    """Return the Config that the shared parts read; its learning settings have no effect in an evaluation."""
    shared = {name: getattr(args, name) for name in settings(TrialSettings)}
    own = {"model_name": model_name, "seed": args.seed, "temperature": args.temperature or 1.0}
    return Config(**shared | own)


def _between(args: EvalArgs) -> Iterator[str]:
    if args.model_name is None and args.checkpoint is None:
        whose = "a base model" if args.policy is None else "the chat template and tokens of the trials of policy"
        yield f"model_name: needed for {whose}; give model_name=…{' or checkpoint=RUN_DIR' * (args.policy is None)}"
    if args.policy is not None and args.checkpoint is not None:
        yield f"policy={args.policy}: checkpoint={args.checkpoint} is a policy too; give one of them as against"
    for k in args.k:
        if not 1 <= k <= args.trials:
            yield f"k={k}: pass@{k} needs from 1 to trials={args.trials}; raise trials or leave it out"
    if args.against is not None and (
        args.against == args.checkpoint or (not args.checkpoint and args.against == "base")
    ):
        yield f"against={args.against}: the same policy as checkpoint; name another one, or leave it out"


def _saved(out: str | None) -> Mapping[str, Any]:
    if out is None:
        return {}
    run = RunDirectory(Path(out).expanduser())
    if not run.config.is_file():
        if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            raise UserError(f"out={out}: exists and is no evaluation; choose a folder that is empty or new")
        return {}
    saved = read_json(run.config)
    if "trials" not in saved:
        raise UserError(f"out={out}: the directory of a training run; choose another one")
    for line in removed(saved, FIELDS):
        log.warning("%s: %s", run.config, line)
    return tuples(current(saved, FIELDS.keys() - {"out"}))


def parse_measure(argv: Sequence[str]) -> EvalArgs:
    """Return the arguments of the evaluation behind out=FILE.json: it is in the folder FILE. Raises UserError."""
    file = given(argv, "out")
    if file is None or not file.endswith(ENDING):
        raise UserError(f"out={file}: give the file to write, out=FILE{ENDING}; its evaluation goes to the folder FILE")
    known = given(argv, "trials") is not None or Path(file.removesuffix(ENDING)).expanduser().is_dir()
    words = [*argv, f"out={file.removesuffix(ENDING)}", *([] if known else [f"trials={TRIALS}"])]
    args = parse(words, ("tasks_dir",))
    if args.against is not None:
        raise UserError(f"against={args.against}: difficulty is of one policy; leave it out")
    return args
