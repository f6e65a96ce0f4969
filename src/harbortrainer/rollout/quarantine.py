"""Tasks that keep failing are left out; whom a fault counts against."""

import logging
from collections import Counter
from collections.abc import Mapping

from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.learning.treatment import PASSING

log = logging.getLogger("harbortrainer")
SAMPLING = "sampling: "  # begins the detail of a trial that was lost to the server
UNANSWERED = f"{SAMPLING}the first request had no answer when the time was over"
USER = "user: "  # begins that of one whose simulated user failed
MAX_FAULTS = 6  # of one task in a row
_NO_SPACE = "no space left on device"  # in the text of a daemon's answers


def lost_to_server(trajectory: Trajectory) -> bool:
    return trajectory.detail.startswith(SAMPLING)


def blames_task(trajectory: Trajectory) -> bool:
    """Return whether a trial without a reward counts against its task.

    Those of the server, the policy, the simulated user, a network and a full disk do not.
    """
    if _NO_SPACE in trajectory.detail.lower() or trajectory.detail.startswith((SAMPLING, USER, PASSING)):
        return False
    return trajectory.outcome in (Outcome.VERIFIER_ERROR, Outcome.INFRASTRUCTURE_ERROR)


class Quarantine:
    """Excludes a task after MAX_FAULTS faults in a row that are not the server's or the policy's.

    `reasons`: task name -> why, those of an earlier process included.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        self._in_a_row: Counter[str] = Counter()

    def note(self, trajectory: Trajectory) -> None:
        """Count a finished trial."""
        task = trajectory.task_name
        if trajectory.reward is not None:
            self._in_a_row[task] = 0
        elif blames_task(trajectory):
            self._in_a_row[task] += 1
            if self._in_a_row[task] >= MAX_FAULTS and task not in self.reasons:
                self.reasons[task] = f"{trajectory.outcome}: {trajectory.detail}"
                log.warning(
                    "task %s is left out of the run after %d faults in a row, the last: %s",
                    task, self._in_a_row[task], self.reasons[task],
                )  # fmt: skip
