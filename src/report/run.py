"""A run directory -> everything that its part of the page shows, as plain JSON values."""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.errors import UserError
from src.report.curves import batch_intervals, columns
from src.report.timeline import STAGES, timelines
from src.report.trials import TrialRow, funnel, read_trials
from src.run.directory import RunDirectory
from src.run.jsonl import read_lines

# columns of the trials' table, and which of them hold texts from a shared list
COLUMNS = (
    "name", "task", "kind", "step", "folder", "attempt", "outcome", "cause", "stage", "fate", "use", "reward",
    "advantage", "turns", "prompt_tokens", "sampled_tokens", "seconds",
)  # fmt: skip
SHARED = ("task", "kind", "folder", "outcome", "cause", "stage", "fate", "use")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """`shown`: the run's part of the page."""

    run: RunDirectory
    config: dict[str, Any]
    trials: list[TrialRow]
    shown: dict[str, Any]


def read_run(path: Path) -> RunRecord:
    """Raises UserError when it is no run directory, or names a file of it that is damaged."""
    run = RunDirectory(path.expanduser().resolve())
    if not run.config.is_file():
        raise UserError(f"{path}: no run directory ({run.config.name} is missing); give the folder that holds it")
    config = _object(run.config)
    records = _lines(run.ledger)
    trials = read_trials(records)
    rows = _lines(run.metrics)
    shown = {
        "name": run.name,
        "config": config,
        "effective": _object(run.effective) if run.effective.is_file() else {},
        "versions": _object(run.path / "versions.json") if (run.path / "versions.json").is_file() else {},
        "metrics": columns(rows),
        "intervals": batch_intervals(trials),
        "funnel": funnel(records),
        "causes": _causes(trials),
        "trials": _table(trials),
        "timelines": timelines(run.path, trials),
        "stages": STAGES,
        "checkpoints": [{"step": r.get("step"), "path": r.get("path")} for r in _lines(run.checkpoints)],
        "changes": _changes(_lines(run.config_changes)),
        "resumed": [record.get("step") for record in records if record.get("event") == "resumed"],
        "span": _span(records),
    }
    return RunRecord(run, config, trials, shown)


def _table(trials: Sequence[TrialRow]) -> dict[str, Any]:
    """By column; a shared text is its number in `texts`."""
    texts: dict[str, int] = {}
    table: dict[str, Any] = {}
    for name in COLUMNS:
        values = [getattr(trial, name) for trial in trials]
        if name in SHARED:
            values = [texts.setdefault(str(value), len(texts)) for value in values]
        table[name] = values
    return table | {"texts": list(texts), "shared": SHARED}


def _causes(trials: Sequence[TrialRow], most: int = 200) -> list[dict[str, Any]]:
    """How often trials ended in each way, most frequent first."""
    keys = ((t.kind, t.outcome, t.cause, t.stage, t.fate.partition(" ")[0]) for t in trials if t.ended is not None)
    names = ("kind", "outcome", "cause", "stage", "fate")
    return [dict(zip(names, key, strict=True)) | {"trials": n} for key, n in Counter(keys).most_common(most)]


def _changes(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a resumed run was given otherwise, and from which step on."""
    return [
        {"step": record["from_step"] + 1, "field": field, "before": change.get("before"), "now": change.get("now")}
        for record in records
        for field, change in record["changes"].items()
    ]


def _span(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    times = [record["time"] for record in records if isinstance(record.get("time"), int | float)]
    if not times:
        return {}
    first, last = min(times), max(times)
    return {"began": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(first)), "seconds": round(last - first, 1)}


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{path}: damaged; restore it to make a report")
    return value


def _lines(path: Path) -> list[dict[str, Any]]:
    """Records without those that are no objects of ours."""
    try:
        return read_lines(path)
    except UserError as error:
        raise UserError(str(error).replace("or start a new run", "to make a report")) from None
