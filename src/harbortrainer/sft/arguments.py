"""The command `sft`: its arguments, over those of an earlier process of the same run, and its work."""

from collections.abc import Iterator, Sequence

import chz

from harbortrainer.cli.arguments import run_problems
from harbortrainer.config import JOB
from harbortrainer.errors import refuse
from harbortrainer.run.config_changes import read_run_arguments
from harbortrainer.setting import changed, field, problems, settings
from harbortrainer.sft_config import SftConfig
from harbortrainer.stopping import Stop


@chz.chz
class SftArgs(SftConfig):
    """The settings of a run, and what this process does with them."""

    # -- this command
    dry_run: bool = field(False, "true, or --dry-run: print what the run would train on and cost, spend nothing")

    @property
    def config(self) -> SftConfig:
        """The settings alone: what the run directory keeps."""
        return SftConfig(**{name: getattr(self, name) for name in settings(SftConfig)})


def checked(argv: Sequence[str]) -> SftArgs:
    """Return arguments from `name=value`, checked; a continued run gives the values left out. Raises UserError."""
    args = read_run_arguments(SftArgs, SftConfig, argv)
    check(args)
    return args


def check(config: SftConfig) -> None:
    """Raise UserError for values that cannot be, alone or together."""
    refuse([*problems(config), *_between(config), *run_problems(config)])


async def sft(args: SftArgs, stop: Stop) -> int:
    """Exit status. The imports take seconds, so they follow the check of the arguments."""
    from harbortrainer.sft.session import dry_run, run_sft

    return await dry_run(args.config) if args.dry_run else await run_sft(args.config, stop)


def _between(args: SftConfig) -> Iterator[str]:
    if not args.data and not args.runs:
        yield "data: nothing to train on; give data=FILE.jsonl or runs=RUN_DIR"
    for setting in changed(args, "patience", "eval_every") if not args.eval_split else ():
        yield f"{setting}: no conversation is held out; set eval_split"
    for setting in changed(args, "observation_loss_coef") if len(args.train_on) == 1 else ():
        yield f"{setting}: without effect with train_on=answers; set train_on=answers,observations or leave it out"
    graded = bool(args.runs) or any(one.startswith(JOB) for one in args.data)
    choosing = [*([] if args.runs else ["best_of_group"]), *([] if graded else ["min_reward"])]
    for setting in changed(args, *choosing):
        yield f"{setting}: it chooses among trials of runs; give runs=RUN_DIR or leave it out"
