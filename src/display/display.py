"""What a person sees in the terminal while a run goes on: a live view on a real one, plain lines elsewhere."""

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Self

from rich.console import Console

from src.display.board import Board
from src.display.live import LiveView
from src.display.panel import Words
from src.display.run_log import RunLog, harmless
from src.display.strays import Screen, captured
from src.learning.trajectory import Outcome, Trajectory
from src.run.directory import RunDirectory
from src.run.jsonl import read_lines
from src.stop import Stop

Mode = Literal["auto", "plain", "quiet"]
AT_ONCE = "a second Ctrl-C leaves at once"
log = logging.getLogger("harbortrainer")


class Display:
    """Prints to stdout; one line a step, so that a log file reads well too.

    Entered as a context, it has the terminal: a live view where there is a real one and `mode` is auto, our warnings
    between its lines, and whatever libraries say in the log file alone. quiet: errors and what is `announce`d.
    `watcher` is told where each trial is.
    """

    def __init__(self, console: Console | None = None, mode: Mode = "auto") -> None:
        self._console = console or Console(file=sys.stdout, highlight=False, soft_wrap=True, emoji=False)
        self._errors = sys.stderr
        self._mode: Mode = mode
        self._start = time.monotonic()
        self._lock = threading.RLock()  # of whoever prints
        self._board = self.watcher = Board()
        self._live: LiveView | None = None
        self._log = RunLog(self._warn_of_log)
        self._stop: Stop | None = None
        self._waits = self._began = False
        self._title = "harbortrainer"
        self._under_way: list[str] = []  # trials of a batch, and of an evaluation beside it
        self._held = contextlib.ExitStack()
        self.spent: Callable[[], str] | None = None  # cost so far, in words; asked at every draw of the live view

    def __enter__(self) -> Self:
        self._errors = sys.stderr
        self._held.enter_context(captured(self._log, Screen(self._warn)))
        log.info("process %d: %s", os.getpid(), " ".join(sys.argv))
        if self._mode == "auto" and self._console.file.isatty() and not self._console.is_dumb_terminal:
            self._live = LiveView(self._console, self._board, self._words, self._lock)
            self._held.callback(self._end_live)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        self._log.close()

    def say(self, text: str) -> None:
        """A line; once trials have begun, the last ones stay in view."""
        log.info("%s", text)
        if self._began:
            self._event(text)
        if self._mode != "quiet":
            self._print(text)

    def announce(self, text: str) -> None:
        """A line that is told in quiet mode too: where the run is, how it ended."""
        log.info("%s", text)
        self._print(text)

    def doing(self, what: str) -> None:
        """What the live view calls that which goes on now."""
        self._board.doing(what)

    def building(self, _: str, done: int, total: int) -> None:
        """Progress of images."""
        self._board.doing(f"images of tasks: {done}/{total} are there")

    def follow(self, stop: Stop, *, waits: bool) -> None:
        """Show what Ctrl-C does, and did. `waits`: trials that run are let end."""
        self._stop, self._waits = stop, waits

    def keep_log(self, run: RunDirectory, total_steps: int = 0) -> None:
        """The run is kept there, and so long; what its earlier processes logged is shown too. Raises UserError."""
        self._title = run.name
        self._log.open(run.path)
        self._board.doing("preparing images, agent and weights")
        self._board.plan(total_steps, read_lines(run.metrics))

    @contextmanager
    def trials(self, label: str, total: int) -> Iterator[Callable[[Trajectory], None]]:
        """Trials of batch "step N", of evaluation "eval N" or of others; yields what to call with each finished one.

        Begun beside others, `total` counts those too.
        """
        kind, during, after = _phases(label)
        self._began = True
        self._under_way.append(during)
        self._board.begin(kind, total, during)
        try:
            yield self._finished
        finally:
            self._under_way.remove(during)
            self._board.doing(self._under_way[-1] if self._under_way else after)

    def step(self, step: int, total: int, row: dict[str, float]) -> None:
        """One line for a finished step."""
        signal = row["group/count"] * (1 - row["group/constant_fraction"])
        lost = f"  lost {row['group/trials_lost']:.0f}" if row["group/trials_lost"] else ""
        self._board.stepped(step, total, row)
        self._tell(
            f"step {step}/{total}  reward {row['reward/mean']:.3f}  "
            f"groups with signal {signal:.0f}/{row['group/count']:.0f}  trials {row['rollout/trials']:.0f}{lost}  "
            f"turns {row['turn/per_trial']:.1f}  sample {row['time/sample']:.1f}s  update {row['time/update']:.1f}s"
        )

    def evaluation(self, step: int, row: dict[str, float]) -> None:
        ungraded = f"  ungraded {row['eval/trials_ungraded']:.0f}" if row["eval/trials_ungraded"] else ""
        self._board.evaluated(step, row)
        self._tell(
            f"held-out after step {step}: reward {row['eval/reward_mean']:.3f} ± {row['eval/reward_stderr']:.3f} "
            f"({row['eval/tasks']:.0f} tasks, {row['eval/trials']:.0f} trials){ungraded}"
        )

    def _finished(self, trajectory: Trajectory) -> None:
        self._board.finished(trajectory)
        if trajectory.outcome in (Outcome.INFRASTRUCTURE_ERROR, Outcome.VERIFIER_ERROR) and self._live is None:
            self._tell(f"  {trajectory.trial_name} {trajectory.outcome.value}: {trajectory.detail}")

    def _tell(self, text: str) -> None:
        log.info("%s", text)
        if self._mode != "quiet":
            self._print(text)

    def _print(self, text: str) -> None:
        elapsed = time.monotonic() - self._start
        line = f"[{int(elapsed // 60):3d}:{elapsed % 60:04.1f}] {harmless(text)}"
        with self._lock:
            self._console.print(line, markup=False)

    def _warn(self, level: int, text: str) -> None:
        """A record of our log: already in the file."""
        self._event(text)
        line = f"{logging.getLevelName(level)}: {text}"
        if self._live is not None:
            self._print(line)
        elif self._mode != "quiet" or level >= logging.ERROR:
            print(harmless(line), file=self._errors, flush=True)

    def _event(self, text: str) -> None:
        self._board.event(harmless(" ".join(text.split())))

    def _warn_of_log(self, text: str) -> None:
        self._warn(logging.WARNING, text)

    def _words(self, running: int) -> Words:
        spent = self.spent() if self.spent is not None else ""
        stop = self._stop
        if stop is None:
            return Words(self._title, "ends it; trials that are finished are kept", spent=spent)
        if not self._began and not stop.asked:
            return Words(self._title, "ends the run before it begins", spent=spent)
        if stop.asked:
            how = "are let end" if stop.lets_end else "are cancelled"
            now = f"{running} running trials {how}, then the weights are saved" if running else "the weights are saved"
            return Words(self._title, f"{stop.why}: {now}; {AT_ONCE}", True, spent)
        how = "lets running trials end" if self._waits else "cancels running trials"
        return Words(self._title, f"{how}, saves the weights and ends; a second one leaves at once", spent=spent)

    def _end_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def _phases(label: str) -> tuple[str, str, str]:
    """Kind of the trials, what goes on while they run and after them."""
    match = re.fullmatch(r"(step|eval) (\d+)", label)
    if match is None:
        return "eval", label, "saving"
    kind, number = match.group(1), int(match.group(2))
    if kind == "step":
        return kind, f"step {number + 1}: sampling", f"step {number + 1}: update of the weights"
    return kind, f"evaluation after step {number}", "saving"
