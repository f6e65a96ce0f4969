"""One row a step: metrics.jsonl always, wandb when a project is named."""

import os
from pathlib import Path
from typing import Any, Protocol

from src.run.directory import RunDirectory
from src.run.jsonl import append_line, cut_torn_line, read_lines, rewrite


class _WandbRun(Protocol):
    def log(self, data: dict[str, Any]) -> None: ...
    def finish(self, exit_code: int | None = None) -> None: ...


class MetricsLog:
    """`log` is called once for each `global_step`, which only grows; the wandb run ends in `close` and nowhere else."""

    def __init__(self, run: RunDirectory, wandb_run: _WandbRun | None = None) -> None:
        self._path = run.metrics
        self._wandb = wandb_run
        cut_torn_line(self._path)
        rows = read_lines(self._path)
        self.last_step = rows[-1]["global_step"] if rows else -1

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


def cut_metrics(path: Path, last_step: int) -> None:
    """Forget rows after `last_step`: a resumed run writes them again."""
    rows = read_lines(path)
    kept = [row for row in rows if row["global_step"] <= last_step]
    if path.exists():
        rewrite(path, kept)


def start_wandb(run: RunDirectory, project: str | None, name: str | None, config: dict[str, Any]) -> _WandbRun | None:
    """A wandb run, resumed when this run directory had one; offline without a key; None without a project."""
    if project is None:
        return None
    import wandb

    has_key = bool(os.environ.get("WANDB_API_KEY")) or _netrc_has_key()
    mode = os.environ.get("WANDB_MODE") or ("online" if has_key else "offline")
    wandb_run = wandb.init(
        project=project,
        name=name or run.name,
        id=run.name[:64],
        resume="allow",
        dir=str(run.path),
        config=config,
        mode=mode,  # pyright: ignore[reportArgumentType]
        settings=wandb.Settings(console="off"),
    )
    wandb_run.define_metric("global_step")
    wandb_run.define_metric("*", step_metric="global_step")
    return wandb_run


def _netrc_has_key() -> bool:
    netrc = Path.home() / ".netrc"
    return netrc.is_file() and "api.wandb.ai" in netrc.read_text(errors="replace")
