"""The row of each step, from the end of its update until it is logged."""

from src.budget.budget import Budget
from src.run.directory import RunDirectory
from src.run.files import read_json, write_json
from src.run.metrics_log import MetricsLog


class StepRows:
    """At most one row is open: of a step that was trained on, and whose evaluation may still be under way.

    A row is logged before its checkpoint is saved, so no step has two rows. A stopped run keeps its open row on disk.
    """

    def __init__(self, run: RunDirectory, metrics: MetricsLog, budget: Budget) -> None:
        self._file = run.pending_row
        self._metrics = metrics
        self._budget = budget
        self._step = -1
        self._row: dict[str, float] | None = None

    @property
    def is_open(self) -> bool:
        return self._row is not None

    def open(self, step: int, row: dict[str, float]) -> bool:
        """Take the row of `step`. False when that step has a row already: a restored state made it again."""
        self._step, self._row = step, row
        if step <= self._metrics.last_step:
            self._close()
            return False
        return True

    def log(self, more: dict[str, float]) -> None:
        """Log the open row with `more` added."""
        assert self._row is not None
        self._metrics.log(self._step, self._row | more | self._budget.metrics())
        self._close()

    def keep(self) -> None:
        """Write an open row to disk: its evaluation comes later, perhaps in another process."""
        if self._row is not None:
            write_json(self._file, {"global_step": self._step, **self._row})

    def forget(self) -> None:
        """Drop an open row from memory: the run continues from an earlier state."""
        self._row = None

    def kept(self, step: int) -> dict[str, float] | None:
        """The row on disk, where it is that of `step` and not logged yet."""
        row: dict[str, float] = read_json(self._file) if self._file.exists() else {}
        return row if row.pop("global_step", -1) == step > self._metrics.last_step else None

    def _close(self) -> None:
        self._row = None
        self._file.unlink(missing_ok=True)
