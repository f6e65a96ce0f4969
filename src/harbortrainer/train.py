"""The command `train`: its arguments, over those of an earlier process of the same run, and its work."""

from collections.abc import Sequence

import chz

from harbortrainer.cli.arguments import validate
from harbortrainer.cli.start import load_late
from harbortrainer.config import FIELDS, Config
from harbortrainer.errors import UserError
from harbortrainer.run.config_changes import read_run_arguments
from harbortrainer.setting import field
from harbortrainer.stopping import Stop


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
    """`parse`, then every check that needs neither network nor environments. Raises UserError."""
    args = parse(argv)
    validate(args)
    if args.json is not None and not args.dry_run:
        raise UserError(f"json={args.json}: only a plan is written there; add --dry-run")
    return args


async def train(args: TrainArgs, stop: Stop) -> int:
    """Exit status of the run, or of its plan. The imports take seconds, so they follow the check of the arguments."""
    if args.dry_run:
        load_late("tinker")
        from harbortrainer.planning import dry_run

        return await dry_run(args.config, args.json)
    from harbortrainer.training.session import run_training

    return await run_training(args.config, stop)


def parse(argv: Sequence[str]) -> TrainArgs:
    """Return arguments from `name=value`; a continued run (resume=RUN_DIR, or its run_name) gives the values left out.

    Raises UserError for anything wrong.
    """
    return read_run_arguments(TrainArgs, Config, argv)
