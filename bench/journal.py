"""What the files of a run say about it: nothing lost, nothing twice, every batch made of the trials that it names."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from harbortrainer.config import FIELDS, Config
from harbortrainer.durable.files import read_json
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.batch import TrainingBatch, assemble
from harbortrainer.learning.datums import digest
from harbortrainer.learning.trajectory import Trajectory, TrialName, group_trajectories
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.trajectories import read_trajectory

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Audit:
    """Of one run directory."""

    trials: int
    steps: int
    optimizer_steps: int
    repeated: int  # trials started again for a place that had its grade
    unsettled: int  # started trials without exactly one end
    skipped_or_doubled: int  # steps out of their order in what went on, or missing at the end
    made_again: int  # steps computed again after a restored state; not a fault
    differing: int  # of these, with another digest than before
    not_of_its_trials: int  # steps whose digest is not that of the trials on disk
    too_old: int  # turns that weights more than max_steps_off_policy steps before sampled
    rows_wrong: int  # global steps in metrics.jsonl that are missing or there twice


def audit(run: RunDirectory, steps: int) -> Audit:
    records = read_lines(run.ledger, checked=True)
    line, made_again, wrong = lineage(records)
    rows = [row["global_step"] for row in read_lines(run.metrics)]
    digests: dict[int, set[str]] = {}
    for record in records:
        if record["event"] == "trained":
            digests.setdefault(record["step"], set()).add(record["digest"])
    return Audit(
        trials=sum(record["event"] == "started" for record in records),
        steps=len(line),
        optimizer_steps=sum(record["optimizer_steps"] for record in line),
        repeated=_repeated(records),
        unsettled=_unsettled(records),
        skipped_or_doubled=wrong + abs(steps - len(line)),
        made_again=made_again,
        differing=sum(len(seen) > 1 for seen in digests.values()),
        not_of_its_trials=sum(digest(rebuilt(run, record).sequences_D) != record["digest"] for record in line),
        too_old=sum(_too_old(run, record) for record in line),
        rows_wrong=sum((Counter(rows) - Counter(range(steps + 1))).values())
        + sum((Counter(range(steps + 1)) - Counter(rows)).values()),
    )


def lineage(records: Sequence[Record]) -> tuple[list[Record], int, int]:
    """The `trained` records that count, those that a restored state took back, and those out of their order."""
    line: list[Record] = []
    again = wrong = 0
    for record in records:
        if record["event"] == "resumed":
            again += max(0, len(line) - record["step"])
            del line[record["step"] :]
        elif record["event"] == "trained":
            wrong += record["step"] != len(line)
            line.append(record)
    return line, again, wrong


def rebuilt(run: RunDirectory, record: Record) -> TrainingBatch:
    """The batch of a step, from its trials on disk and the run's configuration."""
    saved = read_json(run.config)
    config = Config(**{name: value for name, value in saved.items() if name in FIELDS and name != "eval_tasks"})
    groups = groupby(trials(run, record), key=lambda trajectory: TrialName.parse(trajectory.trial_name).group)
    return assemble([group_trajectories((ts := list(group))[0].task_name, ts) for _, group in groups], config)


def trials(run: RunDirectory, record: Record) -> list[Trajectory]:
    """The graded trials of a step, from disk, in the order of their names."""
    names = sorted({*record["rewards"], *record.get("masked", ())})
    folders = {name: run.trajectories("step", TrialName.parse(name).step) for name in names}
    return [read_trajectory(folder / f"{name}.npz") for name, folder in folders.items()]


def _too_old(run: RunDirectory, record: Record) -> int:
    most = read_json(run.config).get("max_steps_off_policy", 0)
    turns = [turn for trial in trials(run, record) for turn in trial.turns]
    return sum(not 0 <= record["step"] - turn.weights_version <= most for turn in turns)


def phase(run: RunDirectory, since: int, save_every: int, n_trials: int) -> str:
    """What a process is doing. `since`: bytes of the ledger before that process; `n_trials` of a training batch."""
    if not run.ledger.exists() or run.ledger.stat().st_size <= since:
        return "start-up"
    records = _without_ahead(run, read_lines(run.ledger))
    left_open: dict[str, None] = {}
    for record in records:
        if record["event"] == "started":
            left_open[record["trial"]] = None
        elif record["event"] == "ended":
            left_open.pop(record["trial"], None)
    last = records[-1]
    if _composed_last(records):
        return "update"
    if left_open:
        return "evaluation" if TrialName.parse(next(iter(left_open))).kind == "eval" else "sampling"
    if last["event"] == "resumed":
        return "restoring"
    if last["event"] == "ended" and (name := TrialName.parse(last["trial"])).kind == "step":
        batch = name.group[:2]
        ends = [r for r in records if r["event"] == "ended" and TrialName.parse(r["trial"]).group[:2] == batch]
        return "update" if sum(r["fate"] in ("graded", "dropped") for r in ends) >= n_trials else "sampling"
    return _after_update(run, save_every)


def _without_ahead(run: RunDirectory, records: Sequence[Record]) -> Sequence[Record]:
    """Without the starts of environments that wait for the end of an update, where a step is its batch."""
    if any(record["event"] == "composed" for record in records):
        return records
    rows, (line, _, _) = read_lines(run.metrics), lineage(records)
    now = min(len(line), rows[-1]["global_step"] if rows else 0)

    def ahead(record: Record) -> bool:
        return (
            record["event"] == "started"
            and (name := TrialName.parse(record["trial"])).kind == "step"
            and name.step > now
        )

    return [record for record in records if not ahead(record)] or records


def _composed_last(records: Sequence[Record]) -> bool:
    """Whether a step was composed and not trained on yet."""
    events = [record["event"] for record in records if record["event"] in ("composed", "trained")]
    return bool(events) and events[-1] == "composed"


def _after_update(run: RunDirectory, save_every: int) -> str:
    rows = read_lines(run.metrics)
    line, _, _ = lineage(read_lines(run.ledger))
    if not rows or rows[-1]["global_step"] < len(line):
        return "publishing, logging"
    saved = read_lines(run.checkpoints)
    due = len(line) % save_every == 0
    return "saving" if due and (not saved or saved[-1]["step"] < len(line)) else "sampling"


def _repeated(records: Sequence[Record]) -> int:
    graded: set[TrialName] = set()
    repeated = 0
    for record in records:
        if record["event"] == "started":
            repeated += TrialName.parse(record["trial"]).first in graded
        elif record["event"] == "ended" and record["fate"] == "graded":
            graded.add(TrialName.parse(record["trial"]).first)
    return repeated


def _unsettled(records: Sequence[Record]) -> int:
    counts = Counter(record["trial"] for record in records if record["event"] == "started")
    counts.subtract(record["trial"] for record in records if record["event"] == "ended")
    return sum(abs(count) for count in counts.values())
