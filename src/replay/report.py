"""A run's steps as they were and as they would have been, as a table and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

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
