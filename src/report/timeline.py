"""When each stage of a trial ran: bars of a batch's timeline."""

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from src.report.trials import TrialRow

PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")  # as Harbor's result.json names them
STAGES = ("environment", "agent setup", "agent", "verifier", "rest", "whole trial")
_REST, _WHOLE = 4, 5
MOST_FILES = 2000  # of Harbor's result.json that are read, one a trial

Bar = tuple[int, int, float, float]  # trial, stage, begin and length in seconds


def timelines(run: Path, trials: Sequence[TrialRow]) -> dict[str, dict[str, Any]]:
    """Bars of whole batches by their folder's name, `began`: Unix seconds; as many as MOST_FILES allows.

    Training and evaluation in turn: the last batch of each, the first, then evenly spread.
    """
    batches: defaultdict[str, list[int]] = defaultdict(list)
    for index, trial in enumerate(trials):
        if trial.folder and trial.started is not None and trial.ended is not None:
            batches[trial.folder].append(index)
    found, left = {}, MOST_FILES
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
    """All of them: the last, the first, the one in the middle, then those in the middle of what is left."""
    if len(items) < 3:
        return list(items)[::-1]
    order, spans = [len(items) - 1, 0], [(0, len(items) - 1)]
    for low, high in spans:  # grows while it is walked
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            spans += [(low, middle), (middle, high)]
    return [items[index] for index in order]


def _bars(run: Path, trial: TrialRow, index: int, began: float) -> list[Bar]:
    """Its phases as Harbor timed them; without Harbor's file, the whole trial as the ledger has it."""
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
    except (OSError, ValueError, TypeError, AttributeError, KeyError):  # cut off, or of another program
        return []
    last = max((end for _, _, end in found), default=over)
    return [*found, (_REST, last, over)] if over > last else found


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _bar(index: int, stage: int, begin: float, length: float) -> Bar:
    return index, stage, round(begin, 2), round(max(length, 0.0), 2)
