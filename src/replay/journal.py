"""What a run left of its steps: the ledger's record of each, its settings, its trials. Reads only."""

import re
from itertools import groupby
from typing import Any

from src.config import Config
from src.config_changes import ConfigHistory
from src.course import Course
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
