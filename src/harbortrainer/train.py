"""The command `train`: its arguments, over those of an earlier process of the same run, and its work."""

import logging
from collections.abc import Sequence

import chz

from harbortrainer.cli.arguments import given, read_arguments, validate
from harbortrainer.config import FIELDS, SETTINGS, Config
from harbortrainer.errors import UserError
from harbortrainer.run.config_changes import ConfigHistory, from_json
from harbortrainer.run.directory import RunDirectory, find_run, open_run_directory
from harbortrainer.setting import field
from harbortrainer.stopping import Stop

log = logging.getLogger("harbortrainer")


@chz.chz
class TrainArgs(Config):
    """The settings of a run, and what this process does with them."""

    # -- this command
    dry_run: bool = field(False, "true, or --dry-run: print what the run would do and cost, spend nothing")
    json: str | None = field(None, "with --dry-run: file for the plan as JSON, - = standard output")

    @property
    def config(self) -> Config:
        """The settings alone: what the run directory keeps."""
        return Config(**{name: getattr(self, name) for name in FIELDS})


def checked(argv: Sequence[str]) -> TrainArgs:
    """`parse`, then every check that needs neither network nor Docker. Raises UserError."""
    args = parse(argv)
    validate(args)
    if args.json is not None and not args.dry_run:
        raise UserError(f"json={args.json}: only a plan is written there; add --dry-run")
    return args


async def train(args: TrainArgs, stop: Stop) -> int:
    """Exit status of the run, or of its plan. The imports take seconds, so they follow the check of the arguments."""
    if args.dry_run:
        from harbortrainer.planning import dry_run

        return await dry_run(args.config, args.json)
    from harbortrainer.training.session import run_training

    return await run_training(args.config, stop)


def parse(argv: Sequence[str]) -> TrainArgs:
    """Arguments from `name=value`; a continued run (resume=RUN_DIR, or its run_name) gives the values left out.

    Raises UserError for anything wrong.
    """
    run = _earlier_run(argv)
    if run is None:
        return read_arguments(TrainArgs, argv)
    history = ConfigHistory(run, Config)
    args = read_arguments(TrainArgs, argv, saved=chz.asdict(from_json(Config, history.latest)))
    history.changes(args)  # refuses what must not be changed
    for line in history.removed:
        log.warning("%s: %s", run.config, line)
    return chz.replace(args, resume=str(run.path))


def _earlier_run(argv: Sequence[str]) -> RunDirectory | None:
    if (path := given(argv, "resume")) is not None:
        return open_run_directory(path)
    name = given(argv, "run_name")
    return None if name is None else find_run(given(argv, "logs_dir") or SETTINGS["logs_dir"].default, name)
