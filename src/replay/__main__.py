"""`python -m src.replay RUN_DIR field=value ...`: what a run's trials would have become under other settings."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from src.cli.main import main
from src.cli.output import give_json
from src.config import Config
from src.errors import UserError
from src.replay.arguments import SETTINGS, ReplayArgs, changed, directory
from src.replay.rebuilt import Journal, changed_datums, clipped, numbers, rebuild, same_as_recorded
from src.run.directory import RunDirectory

COLUMNS = {
    "groups_with_signal": "groups with signal",
    "trials": "trials",
    "tokens": "tokens",
    "mean_abs_advantage": "mean |A|",
    "weight": "weights",
    "optimizer_steps": "updates",
}
MEANS = ("mean_abs_advantage",)  # over trials; the other numbers are summed


@dataclass(frozen=True, slots=True)
class StepReport:
    """`step` as in metrics.jsonl. `difference`: why the run's own datums could not be rebuilt, "" = bit by bit."""

    step: int
    run: dict[str, float]
    replay: dict[str, float]
    datums_changed: int
    clipped: float | None
    difference: str


@dataclass(frozen=True, slots=True)
class Report:
    """`settings`: field -> what the run had (at its first replayed step), what the replay has."""

    run_dir: str
    settings: dict[str, tuple[Any, Any]]
    steps: Sequence[StepReport]
    notes: Sequence[str]

    @property
    def rebuilt(self) -> bool:
        return not any(step.difference for step in self.steps)

    def to_json(self) -> str:
        changes = {name: {"run": before, "replay": now} for name, (before, now) in self.settings.items()}
        return json.dumps(asdict(self) | {"settings": changes, "rebuilt": self.rebuilt}, indent=2)


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


def show(report: Report, console: Console) -> None:
    """One row a step, `a → b` where a number changes, totals, then what a reader must know."""
    changes = [f"{name}={now}, was {before}" for name, (before, now) in report.settings.items()]

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    say(f"{report.run_dir}: {'; '.join(changes) or 'its own settings'}")
    console.print(_table(report))
    if report.rebuilt:
        say(f"the run's own datums: rebuilt bit by bit, all {len(report.steps)} steps as in the ledger")
    for step in report.steps:
        if step.difference:
            say(f"step {step.step}: not what the run trained on: {step.difference}")
    for note in report.notes:
        say(note)


def _table(report: Report) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for name in ("step", *COLUMNS.values(), "changed", "clipped"):
        table.add_column(name, justify="right", overflow="fold")
    for step in report.steps:
        changed = f"{step.datums_changed} of {step.run['datums']:.0f}"
        table.add_row(f"{step.step}", *_cells(step.run, step.replay), changed, _share(step.clipped))
    run, replay = (_total([getattr(step, side) for step in report.steps]) for side in ("run", "replay"))
    table.add_section()
    changed = f"{sum(step.datums_changed for step in report.steps)} of {run['datums']:.0f}"
    table.add_row("all", *_cells(run, replay), changed, "")
    return table


def _cells(run: dict[str, float], replay: dict[str, float]) -> list[Text]:
    cells = []
    for name in COLUMNS:
        before, now = _number(run[name]), _number(replay[name])
        cells.append(Text(before) if before == now else Text(f"{before} → {now}", "yellow"))
    return cells


def _total(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    total = {name: sum(step[name] for step in steps) for name in steps[0]}
    trials = max(total["trials"], 1.0)
    return total | {name: sum(step[name] * step["trials"] for step in steps) / trials for name in MEANS}


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def _share(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    sys.exit(main(["replay", *sys.argv[1:]]))
