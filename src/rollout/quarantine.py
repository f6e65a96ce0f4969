"""Tasks that keep failing are left out of the run by name, so that the others go on."""

import logging
from collections import Counter
from collections.abc import Mapping

from src.learning.trajectory import Trajectory
from src.rollout.outcome import blames_task

log = logging.getLogger("harbortrainer")


class Quarantine:
    """`limit` faults of a task in a row, none of the server's or the policy's, and it is not started again; 0 = never.

    `reasons`: task name -> why, those of an earlier process included.
    """

    def __init__(self, limit: int, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        self._limit = limit
        self._in_a_row: Counter[str] = Counter()

    def note(self, trajectory: Trajectory) -> None:
        """Count a finished trial."""
        task = trajectory.task_name
        if trajectory.reward is not None:
            self._in_a_row[task] = 0
        elif blames_task(trajectory):
            self._in_a_row[task] += 1
            if self._limit and self._in_a_row[task] >= self._limit and task not in self.reasons:
                self.reasons[task] = f"{trajectory.outcome}: {trajectory.detail}"
                log.warning(
                    "task %s is left out of the run after %d faults in a row, the last: %s",
                    task, self._in_a_row[task], self.reasons[task],
                )  # fmt: skip
