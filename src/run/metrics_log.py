"""One row a step: metrics.jsonl always, wandb when a project is named."""

from typing import Any, Protocol

from src.run.directory import RunDirectory
from src.run.jsonl import append_line, cut_torn_line, read_lines


class RowSink(Protocol):
    """Gets every row in order and skips those it has."""

    def log(self, row: dict[str, Any]) -> None: ...
    def finish(self, exit_code: int | None = None) -> None: ...


class MetricsLog:
    """`log` is called once for each `global_step`, which only grows; the wandb run ends in `close` and nowhere else.

    A row stays when the run goes on from a state before it: the same trials make the same step again. On resume,
    earlier rows are replayed to wandb, which skips those it has.
    """

    def __init__(self, run: RunDirectory, wandb: RowSink | None = None) -> None:
        self._path = run.metrics
        self._wandb = wandb
        cut_torn_line(self._path)
        rows = read_lines(self._path)
        self.last_step = rows[-1]["global_step"] if rows else -1
        if wandb is not None:
            for row in rows:
                wandb.log(row)

    def log(self, global_step: int, metrics: dict[str, float]) -> None:
        if global_step <= self.last_step:
            raise ValueError(f"global_step {global_step} was logged already (last {self.last_step})")
        self.last_step = global_step
        row = {"global_step": global_step, **metrics}
        append_line(self._path, row)
        if self._wandb is not None:
            self._wandb.log(row)

    def close(self, exit_code: int = 0) -> None:
        if self._wandb is not None:
            self._wandb.finish(exit_code=exit_code)
