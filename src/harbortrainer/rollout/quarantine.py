"""Tasks that keep failing are left out; whom a fault counts against."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.learning.treatment import FIRST, PASSING, UNFIT, too_many

log = logging.getLogger("harbortrainer")
SAMPLING = "sampling: "  # begins the detail of a trial that was lost to the server
UNANSWERED = f"{SAMPLING}the first request had no answer when the time was over"
USER = "user: "  # begins that of one whose simulated user failed
_NO_SPACE = "no space left on device"  # in the text of a daemon's answers


@dataclass(frozen=True, slots=True)
class Retries:
    """Limits of a run with faults: ungraded trials of one slot of a group, faults of one task in a row."""

    attempts: int = 3
    faults: int = 6


RETRIES = Retries()


def lost_to_server(trajectory: Trajectory) -> bool:
    return trajectory.detail.startswith(SAMPLING)


def blames_task(trajectory: Trajectory) -> bool:
    """Return whether a trial without a reward counts against its task.

    Those of the server, the policy, the simulated user, a network and a full disk do not; one whose prompt is too long
    leaves its task out at once.
    """
    if _NO_SPACE in trajectory.detail.lower() or trajectory.detail.startswith((SAMPLING, USER, PASSING)):
        return False
    return trajectory.outcome in (Outcome.VERIFIER_ERROR, Outcome.INFRASTRUCTURE_ERROR)


class Quarantine:
    """Excludes a task after `most` faults in a row that are not the server's or the policy's; UNFIT ones at once.

    `reasons`: task name -> why, those of an earlier process included. `n_tasks`: of the run.
    """

    n_tasks = FIRST

    def __init__(self, reasons: Mapping[str, str], most: int = RETRIES.faults) -> None:
        self.reasons, self._most = dict(reasons), most
        self._in_a_row: Counter[str] = Counter()
        self._unfit: dict[str, str] = {}  # of tasks that could ask the policy, or could not for their prompt: why not

    def note(self, trajectory: Trajectory) -> None:
        """Count a finished trial."""
        task = trajectory.task_name
        if trajectory.reward is not None:
            self._in_a_row[task] = 0
            self._unfit.setdefault(task, "")
        elif trajectory.detail.startswith(UNFIT):
            self._unfit[task] = trajectory.detail
            if task not in self.reasons:
                self.reasons[task] = f"{trajectory.outcome}: {trajectory.detail}"
                log.warning("task %s is left out of the run: %s", task, trajectory.detail)
        elif blames_task(trajectory):
            self._in_a_row[task] += 1
            if self._in_a_row[task] >= self._most and task not in self.reasons:
                self.reasons[task] = f"{trajectory.outcome}: {trajectory.detail}"
                log.warning(
                    "task %s is left out of the run after %d faults in a row, the last: %s",
                    task, self._in_a_row[task], self.reasons[task],
                )  # fmt: skip

    def require_fitting(self, context_limit: int) -> None:
        """Raise UserError when the first prompts of too many of the run's first tasks are too long."""
        unfit = {task: why for task, why in self._unfit.items() if why}
        if lines := too_many(unfit, len(self._unfit), self.n_tasks):
            raise UserError(
                f"{lines}\ncontext_limit={context_limit}: too small for {len(unfit)} of the first {len(self._unfit)} "
                "tasks; raise it, or leave such tasks out with tasks_exclude"
            )
