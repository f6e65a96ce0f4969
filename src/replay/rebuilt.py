"""The steps of a run, read from its files and rebuilt by the trainer's own functions, and the numbers to compare."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from src.backend.terms import loss_settings
from src.config import Config
from src.config_changes import ConfigHistory
from src.course import Course
from src.learning.batch import TrainingBatch, assemble
from src.learning.datums import TrainingSequence, digest
from src.learning.minibatches import optimizer_batches
from src.learning.trajectory import Trajectory, TrajectoryGroup, group_trajectories
from src.run.directory import RunDirectory
from src.run.jsonl import read_lines
from src.run.trajectory_file import read_batch

_PLACE = re.compile(r"-p(\d+)-g(\d+)(?:-a\d+)?$")


class Journal:
    """Steps are counted from 0, as in the ledger. Raises UserError when a file of the run is damaged."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._course = Course((), ConfigHistory(run).configs())
        self.records = _standing(run)
        rows = read_lines(run.metrics)
        self._gaps = {row["global_step"] - 1: row.get("logprobs/max_abs_difference") for row in rows}

    def config(self, step: int) -> Config:
        return self._course.at(step).config

    def gap(self, step: int) -> float | None:
        """Largest |trainer's - sampler's logprob| of the first optimizer step's tokens, in nats; None = not logged."""
        return self._gaps.get(step)

    def groups(self, step: int) -> list[TrajectoryGroup]:
        """The batch as the trainer had it; places whose trials were never run to an end are missing."""
        stored = read_batch(self._run.trajectories("step", step)).values()
        places: dict[tuple[int, int], Trajectory] = {}
        for trajectory in sorted(stored, key=lambda t: t.reward is None):  # a grade takes the place first
            if (place := _PLACE.search(trajectory.trial_name)) is not None:
                places.setdefault((int(place[1]), int(place[2])), trajectory)
        in_order = [(problem, places[problem, member]) for problem, member in sorted(places)]
        members_P = [[t for _, t in members] for _, members in groupby(in_order, key=lambda pair: pair[0])]
        return [group_trajectories(members[0].task_name, members) for members in members_P]


def _standing(run: RunDirectory) -> dict[int, dict[str, Any]]:
    """Step -> its record; updates that were undone by a restored state, and not made again yet, are left out."""
    records: dict[int, dict[str, Any]] = {}
    for record in read_lines(run.ledger, checked=True):
        if record["event"] == "trained":
            records[record["step"]] = record
        elif record["event"] == "resumed":
            records = {step: kept for step, kept in records.items() if step < record["step"]}
    return dict(sorted(records.items()))


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """`parts`: what each optimizer step is sent, before a KL penalty."""

    batch: TrainingBatch
    parts: Sequence[Sequence[TrainingSequence]]

    @property
    def digest(self) -> str:
        """As the ledger has it: of the batch before it is normalised and cut into minibatches."""
        return digest(self.batch.sequences_D)


def rebuild(groups_P: Sequence[TrajectoryGroup], config: Config, step: int) -> Rebuilt:
    batch = assemble(groups_P, config)
    return Rebuilt(batch, optimizer_batches(batch.sequences_D, config, step))


def numbers(rebuilt: Rebuilt, groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """`weight`: sum of |advantage| over all sampled tokens as they are sent, after `loss_norm`: the step's leverage."""
    advantages = rebuilt.batch.advantages
    trials = {s.trial_name for s in rebuilt.batch.sequences_D}
    signal = [any(advantages.get(t.trial_name) for t in g.trajectories_G if t.trial_name in trials) for g in groups_P]
    return {
        "groups": float(len(groups_P)),
        "groups_with_signal": float(sum(signal)),
        "trials": float(len(trials)),
        "tokens": float(sum(int(s.mask_T.sum()) for s in rebuilt.batch.sequences_D)),
        "mean_abs_advantage": sum(abs(advantages[name]) for name in trials) / len(trials) if trials else 0.0,
        "weight": float(sum(abs(s.advantages_T).sum(dtype=float) for part in rebuilt.parts for s in part)),
        "optimizer_steps": float(len(rebuilt.parts)),
        "datums": float(len(rebuilt.batch.sequences_D)),
    }


def changed_datums(one: Rebuilt, other: Rebuilt) -> int:
    """Datums that are in only one of them, or are not equal bit by bit as they are sent."""
    a, b = _datums(one), _datums(other)
    return sum(a.get(key) != b.get(key) for key in a.keys() | b.keys())


def clipped(config: Config, gap: float | None, run_substeps: int) -> float | None:
    """Share of the step's tokens whose probability ratio lies outside the thresholds; None = it cannot be known.

    `gap`: largest |log ratio| before the run's first optimizer step of that batch. The weights moved before later ones,
    and no run stores logprobs of each token: within the thresholds the share is 0, beyond them unknown.
    """
    settings = loss_settings(config)
    if settings is None:
        return 0.0
    if gap is None or run_substeps > 1 or config.num_substeps > 1:
        return None
    inside = math.exp(gap) <= settings["clip_high_threshold"] and math.exp(-gap) >= settings["clip_low_threshold"]
    return 0.0 if inside else None


def same_as_recorded(rebuilt: Rebuilt, record: Mapping[str, Any]) -> str:
    """ "" when these are the datums that the ledger's record is of, else what differs."""
    trials = list(dict.fromkeys(s.trial_name for s in rebuilt.batch.sequences_D))
    if lost := [name for name in record["trials"] if name not in trials]:
        return f"{len(lost)} of {len(record['trials'])} trained trials are not there or not trained on ({lost[0]} …)"
    if added := [name for name in trials if name not in record["trials"]]:
        return f"{len(added)} trials were not trained on by the run ({added[0]} …)"
    if rebuilt.batch.advantages != record["advantages"]:
        return "other advantages"
    if record.get("digest", rebuilt.digest) != rebuilt.digest:  # older ledgers have none
        return "other tokens or logprobs, in files changed since"
    updates = [list(dict.fromkeys(s.trial_name for s in part)) for part in rebuilt.parts]
    return "other minibatches" if record.get("updates", updates) != updates else ""


def _datums(rebuilt: Rebuilt) -> dict[tuple[str, int], bytes]:
    seen: Counter[str] = Counter()
    datums: dict[tuple[str, int], bytes] = {}
    for sequence in (s for part in rebuilt.parts for s in part):
        arrays = (sequence.tokens_T, sequence.mask_T, sequence.logprobs_T, sequence.advantages_T)
        datums[sequence.trial_name, seen[sequence.trial_name]] = b"".join(array.tobytes() for array in arrays)
        seen[sequence.trial_name] += 1
    return datums
