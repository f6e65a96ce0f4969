"""The run at Weights & Biases: each row of metrics.jsonl once, however often the run was stopped and went on."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from requests.utils import get_netrc_auth

from src.run.directory import RunDirectory, run_ids
from src.run.jsonl import read_lines
from src.sinks.aside import Aside, Limits
from src.sinks.samples import COLUMNS, sampled_tables
from src.sinks.wandb_files import last_offline_step

CLOUD = "https://api.wandb.ai"
FLUSH_SEC = 0.1  # to wandb's own file: a process that is killed has lost no row that it believes to have sent
CONFIG_FILES = ("config.json", "config_changes.jsonl", "effective.json", "tasks.json", "versions.json")
OFFLINE = ("offline", "dryrun")


class WandbLog:
    """`last_step`: the last global_step that wandb has already, -1 = none. Rows up to there are not sent again."""

    def __init__(self, run: RunDirectory, wandb_run: Any, last_step: int) -> None:
        self.last_step = last_step
        self._directory = run
        self._run = wandb_run

    @property
    def about(self) -> str:
        if not self._run.offline:
            return str(self._run.url)
        return f"offline in {self._directory.path / 'wandb'}; send it with: wandb sync {Path(self._run.dir).parent}"

    def log(self, row: dict[str, Any]) -> None:
        """One call, tables of conversations included.

        wandb's own step is the global_step: parts of a run that were logged offline are merged by it.
        """
        if row["global_step"] > self.last_step:
            self.last_step = row["global_step"]
            self._run.log(row | self._tables(row), step=self.last_step, commit=True)

    def finish(self, exit_code: int | None = None) -> None:
        """Artifacts come last: a server that does not take them has every row by then."""
        try:
            self._record_config()
            self._record_checkpoints()
        finally:
            self._run.finish(exit_code=exit_code)

    def _record_config(self) -> None:
        """What the run is and really trains with, as an artifact: a version when it changed."""
        import wandb

        artifact = wandb.Artifact(f"{self._run.id}-config", "config")
        for name in CONFIG_FILES:
            if (file := self._directory.path / name).is_file():
                with artifact.new_file(name) as copy:
                    copy.write(file.read_text())
        self._run.log_artifact(artifact)

    def _record_checkpoints(self) -> None:
        """Where the saved states are, never the weights: steps and tinker:// paths."""
        import wandb

        states = read_lines(self._directory.checkpoints)
        if not states:
            return
        metadata = {"step": states[-1]["step"], "path": states[-1]["path"]}
        artifact = wandb.Artifact(f"{self._run.id}-checkpoints", "checkpoints", metadata=metadata)
        with artifact.new_file("checkpoints.json") as file:
            json.dump(states, file, indent=2)
        self._run.log_artifact(artifact)

    def _tables(self, row: dict[str, Any]) -> dict[str, Any]:
        tables = sampled_tables(self._directory, row)
        if not tables:
            return {}
        import wandb

        return {name: wandb.Table(columns=list(COLUMNS), data=rows) for name, rows in tables.items()}


def start_wandb(
    run: RunDirectory,
    project: str | None,
    name: str | None,
    config: dict[str, Any],
    say: Callable[[str], None],
    limits: Limits | None = None,
) -> Aside | None:
    """A wandb run, the same one whenever this run directory goes on; None without a project. It never raises.

    Offline without a key, or as WANDB_MODE says; then nothing leaves this machine.
    """
    if project is None:
        return None
    if os.environ.get("WANDB_MODE") == "disabled":
        say("wandb: off (WANDB_MODE=disabled)")
        return None
    limits = limits or Limits()
    return Aside("wandb", lambda: open_wandb(run, project, name, config, limits), say, limits)


def open_wandb(run: RunDirectory, project: str, name: str | None, config: dict[str, Any], limits: Limits) -> WandbLog:
    """Raises whatever wandb does."""
    _settle(run)
    import wandb

    wandb_id = run_ids(run).wandb_id
    before = last_offline_step(run.path / "wandb", wandb_id)
    wandb_run = wandb.init(
        project=project,
        name=name or run.name,
        id=wandb_id,
        resume="allow",
        dir=str(run.path),
        config=config,
        settings=wandb.Settings(
            console="off",
            silent=True,
            init_timeout=limits.finish,
            finish_timeout=limits.finish,
            x_transaction_log_flush_interval=FLUSH_SEC,
        ),
    )
    wandb_run.define_metric("global_step")
    wandb_run.define_metric("*", step_metric="global_step")
    return WandbLog(run, wandb_run, before if wandb_run.offline else wandb_run.starting_step - 1)


def _settle(run: RunDirectory) -> None:
    """What wandb reads when it is imported: where it may write, that it says nothing in the run's terminal."""
    if not has_key():
        os.environ["WANDB_MODE"] = "offline"
    if os.environ.get("WANDB_MODE") in OFFLINE:
        os.environ["WANDB_ERROR_REPORTING"] = "false"
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # to wandb, of its own faults
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_DATA_DIR", str(run.path / "wandb"))
    logging.raiseExceptions = False  # its debug.log on a full disk: a traceback a line


def has_key() -> bool:
    """In the environment, or in .netrc for wandb's server."""
    server = os.environ.get("WANDB_BASE_URL", CLOUD)
    return bool(os.environ.get("WANDB_API_KEY")) or get_netrc_auth(server) is not None
