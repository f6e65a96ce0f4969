"""Reads a run directory into the JSON values of its part of the page: metrics, trials, timelines, settings."""

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.report.trials import TRAIN, TrialRow, funnel, read_trials
from harbortrainer.run.by_host import HostCounts
from harbortrainer.run.conversations import DAMAGED
from harbortrainer.run.directory import RunDirectory, open_run_directory
from harbortrainer.run.provenance import Name, Provenance, printable
from harbortrainer.stats import estimate_reward

PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")  # as a trial's result.json names them
STAGES = ("environment", "agent setup", "agent", "verifier", "rest", "whole trial")
_REST, _WHOLE = 4, 5
MOST_FILES = 2000  # result.json that are read, one a trial
MOST_CAUSES = 200

Bar = tuple[int, int, float, float]  # trial, stage, begin and length in seconds


def timelines(run: Path, trials: Sequence[TrialRow], most: int = MOST_FILES) -> dict[str, dict[str, Any]]:
    """Return bars of batches by folder name; `began`: Unix seconds. `most`: trials, always in whole batches.

    Training and evaluation take turns: the last batch of each, the first, then batches evenly spread.
    """
    batches: defaultdict[str, list[int]] = defaultdict(list)
    for index, trial in enumerate(trials):
        if trial.folder and trial.started is not None and trial.ended is not None:
            batches[trial.folder].append(index)
    found, left = {}, most
    kinds = [[folder for folder in batches if folder.startswith("step_") == training] for training in (True, False)]
    for folder in chain.from_iterable(zip_longest(*map(spread, kinds))):
        if folder is None:
            continue
        if len(batches[folder]) > left and found:
            continue
        left -= len(batches[folder])
        began = min(trials[index].started or 0.0 for index in batches[folder])
        bars = [bar for index in batches[folder] for bar in _bars(run, trials[index], index, began)]
        found[folder] = {"began": began, "bars": bars}
    return {folder: found[folder] for folder in batches if folder in found}


def spread[T](items: Sequence[T]) -> list[T]:
    """Return all items: the last, the first, the middle one, then the middles of the halves, and so on."""
    if len(items) < 3:
        return list(items)[::-1]
    order, spans = [len(items) - 1, 0], [(0, len(items) - 1)]
    for low, high in spans:  # the loop extends it
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            spans += [(low, middle), (middle, high)]
    return [items[index] for index in order]


def _bars(run: Path, trial: TrialRow, index: int, began: float) -> list[Bar]:
    """The whole trial as the ledger has it, and its phases where result.json has them."""
    start, end = trial.started or 0.0, trial.ended or 0.0
    bars = [_bar(index, _WHOLE, start - began, end - start)]
    phases = _phases(run / "rollouts" / trial.folder / trial.name / "result.json")
    return bars + [_bar(index, stage, first - began, last - first) for stage, first, last in phases]


def _phases(path: Path) -> list[tuple[int, float, float]]:
    try:
        result = json.loads(path.read_bytes())
        parts = [result, *(result.get("step_results") or [])]
        found = [
            (stage, _seconds(timing["started_at"]), _seconds(timing["finished_at"]))
            for part in parts
            for stage, phase in enumerate(PHASES)
            if (timing := part.get(phase)) and timing.get("started_at") and timing.get("finished_at")
        ]
        over = _seconds(result["finished_at"]) if result.get("finished_at") else 0.0
    except DAMAGED:  # cut off, or another program's
        return []
    last = max((end for _, _, end in found), default=over)
    return [*found, (_REST, last, over)] if over > last else found


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _bar(index: int, stage: int, begin: float, length: float) -> Bar:
    return index, stage, round(begin, 2), round(max(length, 0.0), 2)


STEP = "global_step"


def columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Get {"steps": [...], "values": {metric: one value a step, None = none there}, "odd": {metric: values that are no
    finite number}}. A step that was written twice counts once, as it was written last.
    """
    by_step = {row[STEP]: row for row in rows if isinstance(row.get(STEP), int)}
    steps = sorted(by_step)
    names = sorted({name for row in by_step.values() for name in row} - {STEP})
    values = {name: [_number(by_step[step].get(name)) for step in steps] for name in names}
    odd = {name: sum(name in r and _number(r[name]) is None for r in by_step.values()) for name in names}
    return {"steps": steps, "values": values, "odd": {name: count for name, count in odd.items() if count}}


def batch_intervals(trials: Sequence[TrialRow]) -> dict[str, list[Any]]:
    """Return each training batch's step, mean over tasks of the graded trials' reward, and 95% interval."""
    rewards: defaultdict[int, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        if trial.kind == TRAIN and trial.step is not None and trial.reward is not None:
            rewards[trial.step][trial.task].append(trial.reward)
    found: dict[str, list[Any]] = {"steps": [], "mean": [], "low": [], "high": []}
    for step in sorted(rewards):
        estimate = estimate_reward(list(rewards[step].values()))
        found["steps"].append(step)
        for name, value in (("mean", estimate.mean), ("low", estimate.low), ("high", estimate.high)):
            found[name].append(_number(value))
    return found


def _number(value: Any) -> float | None:
    """A finite number with 9 digits, else None."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.9g}")


# columns of the trials' table, and which of them hold texts from a shared list
COLUMNS = (
    "name", "task", "kind", "step", "folder", "attempt", "outcome", "cause", "stage", "fate", "use", "reward",
    "advantage", "turns", "prompt_tokens", "sampled_tokens", "seconds", "host", "agent",
)  # fmt: skip
SHARED = ("task", "kind", "folder", "outcome", "cause", "stage", "fate", "use", "host", "agent")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run for its page. `shown`: the run's part of the page."""

    run: RunDirectory
    trials: list[TrialRow]
    shown: dict[str, Any]


def read_run(path: Path) -> RunRecord:
    """Raises UserError for a folder without a run, or a damaged file."""
    run = open_run_directory(str(path), field="")
    records, rows = _lines(run.ledger), _lines(run.metrics)
    trials = read_trials(records)
    shown = {
        "name": run.name,
        "config": _object(run.config),
        "effective": _object(run.effective),
        "versions": _object(run.path / "versions.json"),
        "metrics": columns(rows),
        "intervals": batch_intervals(trials),
        "funnel": funnel(records),
        "causes": _causes(trials),
        "hosts": _hosts(records),
        "sources": sources(records, trials),
        "trials": _table(trials),
        "timelines": timelines(run.path, trials),
        "stages": STAGES,
        "checkpoints": [{"step": r.get("step"), "path": r.get("path")} for r in _lines(run.checkpoints)],
        "changes": _changes(_lines(run.config_changes)),
        "resumed": [record.get("step") for record in records if record.get("event") == "resumed"],
        "span": _span(records),
    }
    return RunRecord(run, trials, shown)


def _table(trials: Sequence[TrialRow]) -> dict[str, Any]:
    """Trials by column; a shared text is an index of `texts`."""
    texts: dict[str, int] = {}
    table: dict[str, Any] = {}
    for name in COLUMNS:
        values = [getattr(trial, name) for trial in trials]
        if name in SHARED:
            values = [texts.setdefault(str(value), len(texts)) for value in values]
        table[name] = values
    return table | {"texts": list(texts), "shared": SHARED}


def _causes(trials: Sequence[TrialRow]) -> list[dict[str, Any]]:
    """How often trials ended in each way, most frequent first, MOST_CAUSES at most."""
    keys = ((t.kind, t.outcome, t.cause, t.stage, t.fate.partition(" ")[0]) for t in trials if t.ended is not None)
    names = ("kind", "outcome", "cause", "stage", "fate")
    return [dict(zip(names, key, strict=True)) | {"trials": n} for key, n in Counter(keys).most_common(MOST_CAUSES)]


def _hosts(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each host, [] for a run on one machine."""
    return [
        {
            "host": name,
            "trials": count.trials,
            "faults": count.faults,
            "start": _number(count.mean_start_sec),
        }
        for name, count in HostCounts(records).counts.items()
    ]


def _changes(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Settings that a resumed run changed, and from which step on."""
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
    """The object in a JSON file, {} without the file. Raises UserError."""
    try:
        value = json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{path}: damaged; restore it to make a report")
    return value


def _lines(path: Path) -> list[dict[str, Any]]:
    """Records of a journal. Raises UserError."""
    try:
        return read_lines(path)
    except UserError as error:
        raise UserError(str(error).replace("or start a new run", "to make a report")) from None


MOST_ROWS, MOST_NAMES, CHARACTERS = 2000, 100, 200  # of the page, of a row, of a name


def sources(records: Iterable[Mapping[str, Any]], trials: Sequence[TrialRow]) -> list[dict[str, Any]]:
    """Return rows of names that came with the same step and as many trials, single trials together; newest first.

    `names`: the newest first; `more`: those left out; `first`, `spread`: steps, None = it did not spread.
    """
    steps = {trial.name: trial.step for trial in trials}
    rows: list[dict[str, Any]] = []
    for task, source in Provenance(records).sources.items():
        alike: defaultdict[Any, list[Name]] = defaultdict(list)
        for name in source.names.values():
            once = name.trials == 1
            alike[() if once else (steps[name.first], name.trials, steps.get(name.spread))].append(name)
        for names in alike.values():
            names.sort(key=lambda name: name.newest, reverse=True)
            rows.append(
                {
                    "task": task,
                    "names": [printable(name.text)[:CHARACTERS] for name in names[:MOST_NAMES]],
                    "more": max(len(names) - MOST_NAMES, 0),
                    "trials": names[0].trials,
                    "rewarded": source.rewarded,
                    "first": max(steps[name.first] or 0 for name in names),
                    "spread": steps.get(names[0].spread),
                }
            )
    rows.sort(key=lambda row: row["first"], reverse=True)
    return rows[:MOST_ROWS]
