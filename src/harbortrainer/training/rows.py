"""The row of a step's metrics, from the end of its update to the end of its evaluation."""

from harbortrainer.budget.budget import Budget
from harbortrainer.durable.files import read_json, write_json
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.metrics import MetricsLog


class StepRows:
    """Holds back the row of a step while its evaluation runs beside the next batch; at most one row is open.

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
        """Open the row of `step`. False when that step has a row already: a restored state repeated it."""
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
        """Write an open row to disk: its evaluation follows later, perhaps in another process."""
        if self._row is not None:
            write_json(self._file, {"global_step": self._step, **self._row})

    def forget(self) -> None:
        """Drop an open row from memory: the run continues from an earlier state."""
        self._row = None

    def kept(self, step: int) -> dict[str, float] | None:
        """The row on disk, if it belongs to `step` and is not logged yet."""
        row: dict[str, float] = read_json(self._file) if self._file.exists() else {}
        return row if row.pop("global_step", -1) == step > self._metrics.last_step else None

    def _close(self) -> None:
        self._row = None
        self._file.unlink(missing_ok=True)
