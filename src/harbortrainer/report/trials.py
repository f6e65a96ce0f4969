"""Turns the ledger's lines into one row a trial and the funnel of all trials; chooses the trials shown in full."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from harbortrainer.learning.trajectory import TrialName, batch_name
from harbortrainer.run.ledger import updates_that_count

TRAIN, EVALUATION, OTHER = "training", "evaluation", "other"


@dataclass(slots=True)
class TrialRow:
    """One trial. Times are Unix seconds; `use`: trained, masked, or why training did not use it."""

    name: str
    task: str = "?"
    attempt: int = 1
    started: float | None = None
    ended: float | None = None
    outcome: str = "running"
    cause: str = ""
    stage: str = ""
    fate: str = ""
    reward: float | None = None
    turns: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0
    use: str = ""
    advantage: float | None = None
    host: str = ""  # that ran it, "" = the machine of the run
    agent: str = ""  # that acted, "" = the policy alone, or unknown
    composed: int | None = None  # the step that its group was composed for, where the ledger names it

    @property
    def kind(self) -> str:
        name = self._parsed
        return OTHER if name is None else TRAIN if name.kind == "step" else EVALUATION

    @property
    def folder(self) -> str:
        """Of its batch, as under rollouts/ and trajectories/; "" = unknown."""
        return "" if self._parsed is None else batch_name(self._parsed.kind, self._parsed.step)

    @property
    def step(self) -> int | None:
        """`global_step` of the row of metrics.jsonl that it is in."""
        name = self._parsed
        if self.composed is not None:
            return self.composed + 1
        return None if name is None else name.step + (name.kind == "step")

    @property
    def _parsed(self) -> TrialName | None:
        try:
            return TrialName.parse(self.name)
        except ValueError:
            return None


def read_trials(records: Iterable[Mapping[str, Any]]) -> list[TrialRow]:
    """Return one row a trial name, in order of start; the last of repeated lines counts."""
    rows: dict[str, TrialRow] = {}
    composed: dict[tuple[int, int], int] = {}
    for record in records:
        match record.get("event"):
            case "started":
                row = TrialRow(record["trial"], record.get("task", "?"), record.get("attempt", 1))
                row.started, row.host = record.get("time"), record.get("host", "")
                row.agent = record.get("agent", "")
                rows[row.name] = row
            case "ended":
                _end(rows.setdefault(record["trial"], TrialRow(record["trial"])), record)
            case "trained":
                _train(rows, record)
            case "composed":
                composed |= dict.fromkeys(map(tuple, record["groups"]), record["step"])
    for row in rows.values():
        if composed and row.kind == TRAIN:
            row.composed = composed.get(TrialName.parse(row.name).group[1:])
        row.use = row.use or _unused(row)
    return list(rows.values())


def funnel(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Count trials started, finished, by fate, trained and masked; for training, evaluation and other trials."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        match record.get("event"):
            case "started":
                counts[TrialRow(record["trial"]).kind]["started"] += 1
            case "ended":
                fate = record.get("fate", "").partition(" ")[0]
                count = counts[TrialRow(record["trial"]).kind]
                count["finished"] += fate != "cancelled"
                count[fate] += 1
    if updates := updates_that_count(records).values():
        too_far = sum(len(update.get("too_far", ())) for update in updates)
        observing = sum(len(update.get("observing", ())) for update in updates)
        counts[TRAIN]["trained"] = sum(len(update["trials"]) for update in updates) - observing - too_far
        counts[TRAIN]["masked"] = sum(len(update.get("masked", ())) for update in updates) + too_far
    return {kind: dict(count) for kind, count in counts.items()}


def _end(row: TrialRow, record: Mapping[str, Any]) -> None:
    row.task = record.get("task", row.task)
    row.attempt = record.get("attempt", row.attempt)
    row.ended = record.get("time")
    for name in ("outcome", "cause", "stage", "fate", "reward", "turns", "prompt_tokens", "sampled_tokens", "seconds"):
        if name in record:
            setattr(row, name, record[name])


def _train(rows: Mapping[str, TrialRow], record: Mapping[str, Any]) -> None:
    uses = dict.fromkeys(record.get("masked", ()), "masked") | dict.fromkeys(record.get("trials", ()), "trained")
    uses |= record.get("left_out", {}) | dict.fromkeys(record.get("too_far", ()), "too far from the policy")
    for name in record.get("observing", ()):
        uses[name] = f"{uses[name]}; its observations teach".removeprefix("trained; ")
    for name, advantage in record.get("advantages", {}).items():
        if name in rows:
            rows[name].advantage = advantage
    for name, use in uses.items():
        if name in rows:
            rows[name].use = use


def _unused(row: TrialRow) -> str:
    if row.ended is None:
        return "running"
    if row.reward is None:
        return "not graded"
    return "evaluation" if row.kind == EVALUATION else "not trained on yet"


def choose(trials: Sequence[TrialRow], most: int) -> list[int]:
    """Return indices of at most `most` trials: in turn failures of each cause, the last training batch, the last
    evaluation, the best, the worst, and a random sample (the same each time).
    """
    ended = [index for index, trial in enumerate(trials) if trial.ended is not None]
    graded = [index for index in ended if trials[index].reward is not None]
    by_reward = sorted(graded, key=lambda index: (trials[index].reward or 0.0, trials[index].advantage or 0.0))
    shuffled = random.Random(0).sample(ended, len(ended))
    kinds = [_failures(trials, ended), _last(trials, ended, TRAIN), _last(trials, ended, EVALUATION)]
    turns = zip_longest(*kinds, by_reward[::-1], by_reward, shuffled)
    return list(dict.fromkeys(index for index in chain.from_iterable(turns) if index is not None))[:most]


def _failures(trials: Sequence[TrialRow], ended: Sequence[int]) -> list[int]:
    """Trials without a grade, newest first; the first one of each cause before those that repeat it."""
    lost = [index for index in reversed(ended) if trials[index].reward is None]
    seen: set[tuple[str, str]] = set()
    first: list[int] = []
    for index in lost:
        cause = (trials[index].outcome, trials[index].cause[:40])
        if cause not in seen:
            seen.add(cause)
            first.append(index)
    return first + [index for index in lost if index not in set(first)]


def _last(trials: Sequence[TrialRow], ended: Sequence[int], kind: str) -> list[int]:
    steps = [trials[index].step or 0 for index in ended if trials[index].kind == kind]
    return [i for i in ended if trials[i].kind == kind and trials[i].step == max(steps)]
