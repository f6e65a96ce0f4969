"""Two lanes of a run's time: the sampler's, trials under way, and the trainer's, updates and their publishing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harbortrainer.report.trials import EVALUATION, TRAIN, TrialRow
from harbortrainer.rollout.level import Why

BINS = 400  # of a lane
STEPS = 8  # in the lanes of the last steps
MOST_BARS = 800  # of the trainer's lane; nearby ones are drawn as one beyond that
UPDATE, PUBLISH = 0, 1

Span = tuple[float, float]  # Unix seconds: begin, end


def lanes(
    records: Iterable[Mapping[str, Any]], trials: Sequence[TrialRow], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return lanes of the last steps and of the whole run; none without an update whose time is known.

    An update ends when the ledger has it; its length and that of the publishing are in the step's row.
    """
    ended = [(r["step"] + 1, r["time"]) for r in records if r.get("event") == "trained" and "time" in r]
    seconds = {row.get("global_step"): (row.get("time/update"), row.get("time/publish")) for row in rows}
    updates: list[tuple[int, Span]] = []
    publishes: list[Span] = []
    for step, end in ended:
        update, publish = seconds.get(step, (None, None))
        if isinstance(update, int | float):
            updates.append((step, (end - update, end)))
            publishes.append((end, end + float(publish or 0.0)))
    kinds = {kind: _spans(trials, kind) for kind in (TRAIN, EVALUATION)}
    if not updates or not kinds[TRAIN]:
        return []
    whole = (min(begin for begin, _ in kinds[TRAIN]), max(end for _, end in (*kinds[TRAIN], publishes[-1])))
    found = [_window(f"all {len(updates)} updates", whole, updates, publishes, kinds)]
    if len(updates) > STEPS:
        last = updates[-STEPS - 1][1][1], whole[1]
        found.insert(0, _window(f"the last {STEPS} updates", last, updates, publishes, kinds))
    return found


def at_once(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the last number of agents of n_parallel_envs=auto, and why it changed last; {} where it was a number."""
    for row in reversed(rows):
        limit, why = row.get("rollout/parallel_limit"), row.get("rollout/parallel_why")
        if isinstance(limit, int | float) and isinstance(why, int | float):
            return {"agents": int(limit), "why": Why(int(why)).words}
    return {}


def _spans(trials: Sequence[TrialRow], kind: str) -> list[Span]:
    return [
        (trial.started, max(trial.started, trial.ended))
        for trial in trials
        if trial.kind == kind and trial.started is not None and trial.ended is not None
    ]


def _window(
    label: str,
    window: Span,
    updates: Sequence[tuple[int, Span]],
    publishes: Sequence[Span],
    kinds: Mapping[str, Sequence[Span]],
) -> dict[str, Any]:
    begin, end = window
    bars = [(UPDATE, *_within(span, window), step) for step, span in updates]
    bars += [(PUBLISH, *_within(span, window), 0) for span in publishes]
    bars = sorted((bar for bar in bars if bar[2] > 0), key=lambda bar: (bar[0], bar[1]))
    sampling = union(_clipped([*kinds[TRAIN], *kinds[EVALUATION]], window))
    training = union(_clipped([*(span for _, span in updates), *publishes], window))
    both = length(sampling) + length(training) - length(union([*sampling, *training]))
    return {
        "label": label,
        "seconds": round(end - begin, 2),
        "trials": {kind: under_way(spans, window) for kind, spans in kinds.items()},
        "bars": [(kind, round(at, 2), round(long, 2), step) for kind, at, long, step in _fewer(bars, end - begin)],
        "sampling": round(length(sampling), 2),
        "training": round(length(training), 2),
        "both": round(both, 2),
    }


def _within(span: Span, window: Span) -> Span:
    """Begin, from the window's, and length of the part inside of the window."""
    begin, end = max(span[0], window[0]), min(span[1], window[1])
    return begin - window[0], max(0.0, end - begin)


def _clipped(spans: Iterable[Span], window: Span) -> list[Span]:
    cut = ((max(begin, window[0]), min(end, window[1])) for begin, end in spans)
    return [(begin, end) for begin, end in cut if begin < end]


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the time in any of the spans, as spans that do not touch."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def under_way(spans: Sequence[Span], window: Span) -> list[float]:
    """Return the mean number of spans that hold in each of BINS parts of the window."""
    width = (window[1] - window[0]) / BINS
    held = [0.0] * BINS
    if width <= 0:
        return held
    whole = [0] * (BINS + 1)  # differences of the number that hold throughout a part
    for begin, end in _clipped(spans, window):
        first, last = (begin - window[0]) / width, (end - window[0]) / width
        low, high = min(int(first), BINS - 1), min(int(last), BINS - 1)
        if low == high:
            held[low] += last - first
            continue
        held[low] += low + 1 - first
        held[high] += last - high
        whole[low + 1] += 1
        whole[high] -= 1
    running = 0
    for part in range(BINS):
        running += whole[part]
        held[part] += running
    return [round(value, 2) for value in held]


def _fewer(bars: list[tuple[int, float, float, int]], seconds: float) -> list[tuple[int, float, float, int]]:
    """At most about MOST_BARS: those of one kind that a part of the lane cannot separate become one, without a step."""
    if len(bars) <= MOST_BARS:
        return bars
    found: list[tuple[int, float, float, int]] = []
    for kind, begin, long, step in bars:
        if found and found[-1][0] == kind and begin - found[-1][1] - found[-1][2] < seconds / BINS:
            found[-1] = kind, found[-1][1], begin + long - found[-1][1], 0
        else:
            found.append((kind, begin, long, step))
    return found
