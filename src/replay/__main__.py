"""`python -m src.replay RUN_DIR field=value ...`: what a run's trials would have become under other settings."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from src.cli.main import main
from src.cli.output import give_json
from src.config import Config
from src.errors import UserError
from src.replay.arguments import SETTINGS, ReplayArgs, changed, directory
from src.replay.journal import Journal
from src.replay.rebuilt import changed_datums, clipped, numbers, rebuild, same_as_recorded
from src.replay.report import Report, StepReport, show
from src.run.directory import RunDirectory


async def replayed(args: ReplayArgs) -> int:
    """Exit status: 0 done, 1 the run's own datums could not be rebuilt."""
    report = replay(directory(args), args)
    if not give_json(report.to_json(), args.json):
        show(report, Console(highlight=False))
    return 0 if report.rebuilt else 1


def replay(run: RunDirectory, args: ReplayArgs) -> Report:
    """Raises UserError when nothing was trained on, a file is damaged, or a setting cannot be replayed."""
    journal = Journal(run)
    steps = _steps(journal, run, args)
    before, now = journal.config(steps[0]), changed(journal.config(steps[0]), args)
    settings = {
        name: (getattr(before, name), getattr(now, name))
        for name in SETTINGS
        if getattr(before, name) != getattr(now, name)
    }
    reports = [_step(journal, step, args) for step in steps]
    notes = [*_notes(now, before, reports), *_undigested([journal.records[step] for step in steps])]
    return Report(str(run.path), settings, reports, notes)


def _steps(journal: Journal, run: RunDirectory, args: ReplayArgs) -> list[int]:
    if not journal.records:
        raise UserError(f"{run.path}: no step was trained on yet; there is nothing to replay")
    wanted = [step - 1 for step in args.steps]
    for step in wanted:
        if step not in journal.records:
            raise UserError(f"steps={step + 1}: not trained on; there are 1 to {max(journal.records) + 1}")
    return wanted or list(journal.records)


def _step(journal: Journal, step: int, args: ReplayArgs) -> StepReport:
    groups_P = journal.groups(step)
    config = journal.config(step)
    now = changed(config, args)
    before, after = rebuild(groups_P, config, step), rebuild(groups_P, now, step)
    return StepReport(
        step + 1,
        numbers(before, groups_P),
        numbers(after, groups_P),
        changed_datums(before, after),
        clipped(now, journal.gap(step), config.num_substeps),
        same_as_recorded(before, journal.records[step]),
    )


def _notes(now: Config, before: Config, steps: Sequence[StepReport]) -> Iterator[str]:
    if before.kl_penalty_coef:
        yield "the run's advantages were sent with its KL penalty; all numbers here are without it"
    if any(step.clipped is None for step in steps):
        yield (
            f"clipped: unknown where {now.loss_fn} saw a ratio beyond the thresholds, and after the first step of a "
            "batch: no run stores the trainer's logprob of each token"
        )
    if now != before:
        yield "what was sampled is as it was: later steps would have had other weights, and other trials"


def _undigested(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if older := sum("digest" not in record for record in records):
        yield f"{older} steps of the ledger have no digest: there only trials, advantages and minibatches were compared"


if __name__ == "__main__":
    sys.exit(main(["replay", *sys.argv[1:]]))
