"""The rows of the metrics, from the end of a step's update to the end of its evaluation."""

from typing import Any

from harbortrainer.budget.budget import Budget
from harbortrainer.durable.files import damaged, read_value, write_json
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.metrics import MetricsLog


class StepRows:
    """Logs rows in the order of steps: a row waits for its evaluation, and for the rows before it.

    A row is logged, or on disk, before its checkpoint is saved, so each step has one row.
    """

    def __init__(self, run: RunDirectory, metrics: MetricsLog, budget: Budget) -> None:
        self._file = run.pending_row
        self._metrics = metrics
        self._budget = budget
        self._rows: dict[int, dict[str, float]] = {}  # those that are not logged, by step
        self._complete: set[int] = set()

    @property
    def undecided(self) -> set[int]:
        """Steps whose evaluation is not over."""
        return {*self._rows} - self._complete

    def open(self, step: int, row: dict[str, float]) -> bool:
        """Open the row of `step`. False when that step has a row already: a restored state repeated it."""
        if step <= self._metrics.last_step:
            return False
        self._rows[step] = row
        return True

    def log(self, step: int, more: dict[str, float]) -> None:
        """Complete the row of `step` with `more`; log all rows that wait for no other."""
        self._rows[step] |= more
        self._complete.add(step)
        while self._rows and (first := min(self._rows)) in self._complete:
            self._metrics.log(first, self._rows.pop(first) | self._budget.metrics())
        self.keep()

    def keep(self) -> None:
        """Write the open rows to disk: their evaluations end later, perhaps in another process."""
        if self._rows:
            write_json(self._file, [{"global_step": step, **row} for step, row in self._rows.items()])
        else:
            self._file.unlink(missing_ok=True)

    def forget(self) -> None:
        """Drop the open rows from memory: the run continues from an earlier state."""
        self._rows, self._complete = {}, set()

    def kept(self, step: int) -> list[tuple[int, dict[str, float]]]:
        """Return the rows on disk that are not logged yet, up to that of `step`; later steps are made again.

        All of them are open from now on: concluding the first one must not drop the others from disk. The other rows
        leave the disk: a process may have been killed after it logged them.
        """
        rows: Any = read_value(self._file) if self._file.exists() else []
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "global_step" in row for row in rows):
            raise damaged(self._file, "it holds no rows")
        by_step = sorted((int(row.pop("global_step")), row) for row in rows)
        kept = [(one, row) for one, row in by_step if self._metrics.last_step < one <= step]
        self._rows |= dict(kept)
        if len(kept) < len(rows):
            self.keep()
        return kept
