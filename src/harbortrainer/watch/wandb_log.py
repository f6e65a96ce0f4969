"""Sends rows and sampled conversations to Weights & Biases in a background thread; never stops a run."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from requests.utils import get_netrc_auth

from harbortrainer.config import Config
from harbortrainer.durable.files import read_json, write_json
from harbortrainer.model_file import model_of
from harbortrainer.policy.tools import transcribed
from harbortrainer.run.directory import RunDirectory, run_ids
from harbortrainer.run.metrics import RowSink
from harbortrainer.stopping import daemon_future
from harbortrainer.text import shortened

CLOUD = "https://api.wandb.ai"
FLUSH_SEC = 0.1  # wandb holds a row this long before it writes its offline file
WRITTEN_SEC = 1.0  # after this time a row is in that file
OFFLINE = ("offline", "dryrun")
COLUMNS = ("global_step", "task", "trial", "reward", "outcome", "shaping", "turns", "conversation")
TRAINING, EVALUATION = "samples/training", "samples/evaluation"
MOST_ROWS = 8  # of a table
MOST_CHARACTERS = 6000  # of one conversation
MOST_LINE = 4_000_000  # bytes; a longer stored conversation is skipped

Row = list[Any]


WITH_TAXONOMY = "_with_taxonomy_feedback"


def wandb_project(config: Config) -> str | None:
    """Return the project of a run: one with a taxonomy logs apart from those without. None = wandb is off."""
    judge = model_of("judge", config.judge)
    plain = judge is None or judge.taxonomy is None
    if not config.wandb_project or plain or config.wandb_project.endswith(WITH_TAXONOMY):
        return config.wandb_project
    return config.wandb_project + WITH_TAXONOMY


class SinkLimits(NamedTuple):
    """Seconds that a run waits for a sink."""

    start: float = 20.0
    finish: float = 90.0


LIMITS = SinkLimits()


class Sink(RowSink, Protocol):
    """A sink. `about`: one line that says where it writes."""

    @property
    def about(self) -> str: ...


class BackgroundSink:
    """A sink of its own thread: `log` never blocks and never raises; after the sink's first error this process sends
    nothing more.
    """

    def __init__(self, name: str, opening: Callable[[], Sink], say: Callable[[str], None], limits: SinkLimits) -> None:
        self._name, self._say, self._limits = name, say, limits
        self._calls: SimpleQueue[Callable[[Sink], None] | None] = SimpleQueue()
        self._about = ""
        self._off = False
        opened = threading.Event()
        self._work = daemon_future(self._serve, opening, opened)
        self._work.add_done_callback(lambda _: opened.set())
        if not opened.wait(limits.start):
            say(f"{name}: no response after {limits.start:g} s; continuing without it")
        self._report()

    def log(self, row: dict[str, Any]) -> None:
        """Hand over one row; a sink that opens late gets the rows that wait."""
        if not self._off:
            self._calls.put(lambda sink: sink.log(row))
        self._report()

    def finish(self, exit_code: int | None = None) -> None:
        """Close the sink. Waits `limits.finish` at most."""
        if self._off:
            return
        self._calls.put(lambda sink: sink.finish(exit_code))
        self._calls.put(None)
        if not wait([self._work], self._limits.finish).done:
            self._off = True
            self._say(f"{self._name}: not finished after {self._limits.finish:g} s; metrics.jsonl has every row")
        self._report()

    def _serve(self, opening: Callable[[], Sink], opened: threading.Event) -> None:
        sink = opening()
        self._about = sink.about
        opened.set()
        for call in iter(self._calls.get, None):
            call(sink)

    def _report(self) -> None:
        """Print, from the run's own thread, where the sink writes and how it failed."""
        if self._about and not self._off:
            self._say(f"{self._name}: {self._about}")
            self._about = ""
        if not self._off and self._work.done() and (error := self._work.exception()) is not None:
            self._off = True
            why = str(error).strip().partition("\n")[0] or "no reason given"
            self._say(
                f"{self._name}: off ({type(error).__name__}: {why}); metrics.jsonl has every row, and a resumed run "
                "sends the missing ones"
            )


class WandbLog:
    """Sends the rows that wandb lacks. A server knows its last step; offline, a note in the run directory does.

    A row is noted when the next one comes and wandb had time to write it: after `kill -9` one row may be sent twice,
    which wandb merges by its step, and none is lost.
    """

    def __init__(self, run: RunDirectory, wandb_run: Any) -> None:
        self._directory = run
        self._run = wandb_run
        self._note = run.path / "wandb" / "last_step.json"
        self._last_step = self._noted() if wandb_run.offline else wandb_run.starting_step - 1  # -1: no row
        self._handed_over = 0.0

    @property
    def about(self) -> str:
        if not self._run.offline:
            return str(self._run.url)
        return f"offline in {self._directory.path / 'wandb'}; send it with: wandb sync {Path(self._run.dir).parent}"

    def log(self, row: dict[str, Any]) -> None:
        """Log a row by one call, tables of conversations included. wandb's own step is the global_step."""
        step = row["global_step"]
        if step > self._last_step:
            if time.monotonic() - self._handed_over > WRITTEN_SEC:
                self._keep_note()
            self._run.log(row | self._tables(row), step=step, commit=True)
            self._last_step, self._handed_over = step, time.monotonic()

    def finish(self, exit_code: int | None = None) -> None:
        """End the wandb run."""
        self._run.finish(exit_code=exit_code)
        self._keep_note()

    def _noted(self) -> int:
        note = read_json(self._note) if self._note.is_file() else {}
        return note["last_step"] if note.get("id") == self._run.id else -1

    def _keep_note(self) -> None:
        if self._run.offline:
            write_json(self._note, {"id": self._run.id, "last_step": self._last_step})

    def _tables(self, row: dict[str, Any]) -> dict[str, Any]:
        import wandb

        tables = sampled_tables(self._directory, row).items()
        return {name: wandb.Table(columns=list(COLUMNS), data=rows) for name, rows in tables}


def start_wandb(
    run: RunDirectory,
    project: str | None,
    name: str | None,
    config: dict[str, Any],
    say: Callable[[str], None],
    limits: SinkLimits = LIMITS,
) -> BackgroundSink | None:
    """Return the wandb run of this run directory, None without a project or with an empty one. Never raises.

    Offline without a key, or as WANDB_MODE says; then nothing leaves this machine.
    """
    if not project:
        return None
    if os.environ.get("WANDB_MODE") == "disabled":
        say("wandb: off (WANDB_MODE=disabled)")
        return None
    return BackgroundSink("wandb", lambda: _open(run, project, name, config, limits.finish), say, limits)


def _open(run: RunDirectory, project: str, name: str | None, config: dict[str, Any], limit: float) -> WandbLog:
    """Start or resume the run. Raises whatever wandb raises."""
    _settle(run)
    import wandb

    wandb_id = run_ids(run).wandb_id
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
            init_timeout=limit,
            finish_timeout=limit,
            x_transaction_log_flush_interval=FLUSH_SEC,
        ),
    )
    wandb_run.define_metric("global_step")
    wandb_run.define_metric("*", step_metric="global_step")
    return WandbLog(run, wandb_run)


def _settle(run: RunDirectory) -> None:
    """Set what wandb reads from the environment at import: its mode, its folder, no output on the terminal."""
    server = os.environ.get("WANDB_BASE_URL", CLOUD)
    if not os.environ.get("WANDB_API_KEY") and get_netrc_auth(server) is None:
        os.environ["WANDB_MODE"] = "offline"
    if os.environ.get("WANDB_MODE") in OFFLINE:
        os.environ["WANDB_ERROR_REPORTING"] = "false"
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # reports to wandb about its own faults
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_DATA_DIR", str(run.path / "wandb"))
    logging.raiseExceptions = False  # on a full disk its debug.log would print a traceback a line


def sampled_tables(run: RunDirectory, row: dict[str, Any]) -> dict[str, list[Row]]:
    """Return tables with COLUMNS for batch and evaluation of a row of metrics.jsonl; none without conversations."""
    step = row["global_step"]
    folder = run.path / "conversations"
    files = {TRAINING: folder / f"step_{step - 1:06d}.jsonl"} if "group/count" in row else {}
    if "eval/tasks" in row:
        files[EVALUATION] = folder / f"eval_{step:06d}.jsonl"
    return {name: rows for name, file in files.items() if (rows := _rows(file, step))}


def _rows(file: Path, step: int) -> list[Row]:
    rows = []
    for record in map(json.loads, _chosen(file) if file.is_file() else ()):
        turns = sum(message["role"] == "assistant" for message in record["messages"])
        said = [transcribed(message) for message in record["messages"]]
        names = ", ".join(tool["function"]["name"] for tool in record.get("tools") or ())
        tools = [("tools", names)] if names else []
        text = "\n\n".join(f"## {who}\n{words}" for who, words in [*said[:1], *tools, *said[1:]])
        shaping = json.dumps(added) if (added := record.get("shaping")) else None
        rows.append([step, *(record[name] for name in COLUMNS[1:5]), shaping, turns, cut(text)])
    return rows


def _chosen(file: Path) -> list[bytes]:
    """MOST_ROWS lines, evenly spread over the tasks; only these are held in memory."""
    with file.open("rb") as lines:
        short = [number for number, line in enumerate(lines) if len(line) <= MOST_LINE]
    count = min(len(short), MOST_ROWS)
    wanted = {short[place * len(short) // count] for place in range(count)}
    with file.open("rb") as lines:
        return [line for number, line in enumerate(islice(lines, max(wanted, default=-1) + 1)) if number in wanted]


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """Keep a third of `most` from the beginning of a long text, the rest from its end."""
    return shortened(text, most // 3, most - most // 3)
