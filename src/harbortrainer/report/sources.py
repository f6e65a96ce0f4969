"""The page's rows on what the rewards of each task came from."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harbortrainer.report.trials import TrialRow
from harbortrainer.run.provenance import Name, Provenance, printable

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
