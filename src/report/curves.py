"""metrics.jsonl as columns, and the interval of each batch's reward."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from src.report.trials import TRAIN, TrialRow
from src.stats.interval import estimate_reward

STEP = "global_step"


def columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """{"steps": [...], "values": {metric: one value a step, None = none there}, "odd": {metric: values that are no
    finite number}}. A step that was written twice counts once, as it was written last.
    """
    by_step = {row[STEP]: row for row in rows if isinstance(row.get(STEP), int)}
    steps = sorted(by_step)
    names = sorted({name for row in by_step.values() for name in row} - {STEP})
    values = {name: [_number(by_step[step].get(name)) for step in steps] for name in names}
    odd = {name: sum(name in r and _number(r[name]) is None for r in by_step.values()) for name in names}
    return {"steps": steps, "values": values, "odd": {name: count for name, count in odd.items() if count}}


def batch_intervals(trials: Sequence[TrialRow]) -> dict[str, list[Any]]:
    """Of each training batch: its step, mean over tasks of the graded trials' reward, and its 95% interval."""
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
    """`value` as JSON can hold it, None when it is no finite number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.9g}")
