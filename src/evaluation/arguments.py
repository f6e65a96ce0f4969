"""What `python -m src.evaluate` is told. Fields that the trainer has too have its names, defaults and meaning."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import chz

from src.command_line import read_arguments
from src.config import Backend, Config
from src.errors import UserError
from src.validation import validate

HEAD = (
    "python -m src.evaluate field=value ...     one policy or two on Harbor tasks; exit 1 if a task has no grade\n"
    "python -m src.evaluate show DIR [TRIAL]    trials of a run or evaluation, or one whole conversation\n"
    "python -m src.evaluate export DIR [STEP]   conversations as JSON lines: a run's evaluations and sampled trials"
)
_TRAINER = chz.chz_fields(Config)


def _same(name: str) -> Any:
    """The trainer's field of that name."""
    field = _TRAINER[name]
    if isinstance(field._default_factory, type):
        return chz.field(default_factory=field._default_factory, doc=field._doc)
    return chz.field(default=field._default, doc=field._doc)


@chz.chz
class EvalArgs:
    # -- policies
    backend: Backend = _same("backend")
    skyrl_tx_url: str | None = _same("skyrl_tx_url")
    tinker_base_url: str | None = _same("tinker_base_url")
    model_name: str | None = chz.field(default=None, doc="base model; None = that of the run which checkpoint names")
    checkpoint: str | None = chz.field(
        default=None, doc="RUN_DIR (its last), RUN_DIR@STEP, or tinker://…; None = the base model"
    )
    against: str | None = chz.field(
        default=None, doc="a second policy to compare with, on the same tasks: as checkpoint, or base; None = none"
    )

    # -- tasks and trials
    tasks_dir: str = chz.field(
        doc="folders of Harbor task directories: a,b; or git+URL[@REV][#FOLDER], NAME@VERSION of a registry; each is a "
        "set with numbers of its own"
    )
    tasks_registry: str | None = _same("tasks_registry")
    tasks_include: tuple[str, ...] = _same("tasks_include")
    tasks_exclude: tuple[str, ...] = _same("tasks_exclude")
    allow_broken_tasks: bool = _same("allow_broken_tasks")
    allow_family_overlap: bool = chz.field(
        default=False, doc="true = tasks of families that the checkpoint was trained on may be evaluated; false = never"
    )
    trials: int = chz.field(default=4, doc="trials a task")
    temperature: float = chz.field(default=1.0, doc="sampling temperature; 0 = greedy")
    k: tuple[int, ...] = chz.field(default=(1,), doc="pass@k to report, a,b; each at most trials")
    pass_reward: float = chz.field(default=1.0, doc="reward from which on a trial counts as passed")
    seed: int = chz.field(default=0, doc="seed of sampling")
    retry_ungraded: bool = chz.field(
        default=False, doc="true = a continued evaluation runs trials again that faults left without a grade"
    )

    # -- environments
    n_parallel_envs: int = _same("n_parallel_envs")
    n_warm_envs: int | None = _same("n_warm_envs")
    n_parallel_builds: int = _same("n_parallel_builds")
    n_parallel_starts: int = _same("n_parallel_starts")
    n_parallel_verifiers: int | None = _same("n_parallel_verifiers")
    env_starts_per_sec: float = _same("env_starts_per_sec")
    env_outage_limit_sec: float = _same("env_outage_limit_sec")
    environment_type: str = _same("environment_type")
    environment_kwargs: dict[str, Any] = _same("environment_kwargs")
    max_attempts: int = _same("max_attempts")
    quarantine_after: int = _same("quarantine_after")
    trial_timeout_sec: float = _same("trial_timeout_sec")

    # -- agent (Terminus-2)
    max_turns: int = _same("max_turns")
    max_tokens: int = _same("max_tokens")
    context_limit: int = _same("context_limit")
    command_wait: Literal["prompt", "duration"] = _same("command_wait")
    enable_summarize: bool = _same("enable_summarize")
    proactive_summarization_threshold: int = _same("proactive_summarization_threshold")
    enable_thinking: bool = _same("enable_thinking")

    # -- server
    sample_timeout_sec: float = _same("sample_timeout_sec")
    save_timeout_sec: float = _same("save_timeout_sec")
    server_silence_sec: float = _same("server_silence_sec")

    # -- run
    server_outage_limit_sec: float = _same("server_outage_limit_sec")
    logs_dir: str = _same("logs_dir")
    out: str | None = chz.field(
        default=None, doc="directory of the results; one that exists is continued; None = one in logs_dir with the time"
    )


FIELDS = tuple(chz.chz_fields(EvalArgs))
# What another process of the same evaluation may be given differently: nothing that its numbers depend on.
FREE = {
    "skyrl_tx_url", "tinker_base_url", "k", "pass_reward", "retry_ungraded", "n_parallel_envs", "n_warm_envs",
    "n_parallel_builds", "n_parallel_starts", "n_parallel_verifiers", "env_starts_per_sec", "env_outage_limit_sec",
    "max_attempts", "quarantine_after", "sample_timeout_sec", "save_timeout_sec", "server_silence_sec",
    "server_outage_limit_sec", "logs_dir", "out",
}  # fmt: skip


def parse(argv: Sequence[str]) -> EvalArgs:
    """`key=value` arguments over the saved values of an evaluation in out=DIR. Raises UserError, SystemExit."""
    saved = _saved(argv)
    args = read_arguments(EvalArgs, argv, HEAD, saved)
    for name in FIELDS:
        if name in saved and name not in FREE and getattr(args, name) != saved[name]:
            raise UserError(
                f"{name}={getattr(args, name)}: {args.out} was started with {name}={saved[name]}; leave it out or "
                "choose another out"
            )
    problems = list(_problems(args))
    if problems:
        raise UserError("\n".join(problems))
    validate(trainer_config(args, args.model_name or "?"))
    return args


def trainer_config(args: EvalArgs, model_name: str, lora_rank: int = 32) -> Config:
    """What the trainer's parts read, for an evaluation; learning settings are their defaults and mean nothing."""
    shared = {name: getattr(args, name) for name in FIELDS if name in _TRAINER and name != "allow_family_overlap"}
    own = {"model_name": model_name, "lora_rank": lora_rank, "temperature": args.temperature or 1.0}
    return Config(**shared | own)


def _problems(args: EvalArgs) -> Iterator[str]:
    if args.model_name is None and args.checkpoint is None:
        yield "model_name: needed for a base model; give model_name=… or checkpoint=RUN_DIR"
    if args.trials < 1:
        yield f"trials={args.trials}: must be above 0"
    if args.temperature < 0:
        yield f"temperature={args.temperature}: must be 0 (greedy) or more"
    for k in args.k:
        if not 1 <= k <= args.trials:
            yield f"k={k}: pass@{k} needs from 1 to trials={args.trials}; raise trials or leave it out"
    if args.against is not None and (
        args.against == args.checkpoint or (not args.checkpoint and args.against == "base")
    ):
        yield f"against={args.against}: the same policy as checkpoint; name another one, or leave it out"


def _saved(argv: Sequence[str]) -> Mapping[str, Any]:
    values = [arg.split("=", 1)[1] for arg in argv if re.match(r"-{0,2}out=", arg)]
    if not values or values[-1] in ("", "None"):
        return {}
    folder = Path(values[-1]).expanduser()
    if not (folder / "config.json").is_file():
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"out={values[-1]}: a folder that is no evaluation; choose one that is empty or new")
        return {}
    from src.run.directory import RunDirectory, read_json

    saved = read_json(RunDirectory(folder).config)
    if "trials" not in saved:
        raise UserError(f"out={values[-1]}: the directory of a training run; choose another one")
    known = {name: saved[name] for name in FIELDS if name in saved and name != "out"}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
