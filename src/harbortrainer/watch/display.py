"""Prints a run to the terminal: lines and a live view on a real one, plain lines elsewhere."""

import contextlib
import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self, override

from rich.console import Console

from harbortrainer.backend.load import Load
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import indented
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.run.directory import RunDirectory
from harbortrainer.stopping import PIPE_STATUS, Stop, drop_output
from harbortrainer.watch.capture import RunLog, WarningHandler, captured
from harbortrainer.watch.view import LiveView, Notes, RunState

AT_ONCE = "a second Ctrl-C leaves at once"
log = logging.getLogger("harbortrainer")


class _Output(Console):
    @override
    def on_broken_pipe(self) -> None:
        """Raise it; rich would end the process."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


async def _no_load() -> Load:
    return {}


class Display:
    """The terminal of a run: prints to stdout, one line a step.

    Within its context it owns the terminal: it draws a live view on a real one, and sends the output of libraries to
    the log file. `watcher` receives the states of trials.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or _Output(file=sys.stdout, highlight=False, soft_wrap=True, emoji=False)
        self._errors = sys.stderr
        self._start = time.monotonic()
        self._lock = threading.RLock()  # held while printing
        self._state = self.watcher = RunState()
        self._live: LiveView | None = None
        self._log = RunLog(lambda text: self._warn(logging.WARNING, text))
        self._stop: Stop | None = None
        self._has_trials = self._began = False
        self._under_way: list[str] = []  # a batch, and an evaluation beside it
        self._held = contextlib.ExitStack()
        self.server_load: Callable[[], Awaitable[Load]] = _no_load
        self.spent: Callable[[], str] | None = None  # cost so far, in words; the live view asks at every draw

    def __enter__(self) -> Self:
        self._errors = sys.stderr
        self._held.enter_context(captured(self._log, WarningHandler(self._warn)))
        log.info("process %d: %s", os.getpid(), " ".join(sys.argv))
        if self._console.file.isatty() and not self._console.is_dumb_terminal:
            self._live = LiveView(self._console, self._state, self._notes, self._lock)
            self._held.callback(self._live.close)
            self._live.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        self._log.close()

    def say(self, text: str) -> None:
        """Print a line."""
        log.info("%s", text)
        self._print(text)

    def doing(self, what: str) -> None:
        """Show the present activity in the live view."""
        self._state.do(what)

    def follow(self, stop: Stop, *, trials: bool) -> None:
        """Show the effect of Ctrl-C. `trials`: this run has some."""
        self._stop, self._has_trials = stop, trials

    def keep_log(self, run: RunDirectory, total_steps: int = 0) -> None:
        """Open the run's log file and show metrics of its earlier processes. Raises UserError."""
        self._state.title = run.name
        self._log.open(run.path)
        self._state.do("preparing images, agent and weights")
        self._state.plan(total_steps, read_lines(run.metrics))

    @contextmanager
    def trials(self, label: str, total: int) -> Iterator[Callable[[Trajectory], None]]:
        """Show the trials of "step N", "eval N" or another label; yields a function to call with each finished trial.

        If another batch is running, `total` includes its trials.
        """
        during, after = _activity(label)
        self._began = True
        self._under_way.append(during)
        self._state.begin(label.startswith("step "), total, during)
        try:
            yield self.finished
        finally:
            self._under_way.remove(during)
            self._state.do(self._under_way[-1] if self._under_way else after)

    def step(self, step: int, total: int, row: dict[str, float]) -> None:
        """Print the line of a finished step."""
        signal = row["group/count"] * (1 - row.get("group/constant_fraction", 1.0))
        reward = f"{row['reward/mean']:.3f}" if "reward/mean" in row else "unknown"
        turns = f"{row['turn/per_trial']:.1f}" if "turn/per_trial" in row else "unknown"
        lost = f"  lost {row['group/trials_lost']:.0f}" if row["group/trials_lost"] else ""
        self._state.logged(step, row, total)
        self.say(
            f"step {step}/{total}  reward {reward}  "
            f"groups with signal {signal:.0f}/{row['group/count']:.0f}  trials {row['rollout/trials']:.0f}{lost}  "
            f"turns {turns}  sample {row['time/sample']:.1f}s  update {row['time/update']:.1f}s"
        )

    def taught(self, step: int, total: int, row: Mapping[str, float]) -> None:
        """Print the line of a step of fine-tuning, and of its held-out loss."""
        self._state.logged(step, row, total)
        parts = [f"step {step}/{total}"]
        if "sft/nll" in row:
            parts += [f"loss {row['sft/nll']:.4f}", f"{row['train/tokens']:.0f} tokens in {row['time/step']:.1f}s"]
        if "sft/held_out_nll" in row:
            parts.append(f"held-out loss {row['sft/held_out_nll']:.4f}")
        if len(parts) > 1:
            self.say("  ".join(parts))

    def evaluation(self, step: int, row: dict[str, float]) -> None:
        """Print the line of an evaluation."""
        ungraded = f"  ungraded {row['eval/trials_ungraded']:.0f}" if row["eval/trials_ungraded"] else ""
        self._state.logged(step, row)
        mean = f"{row['eval/reward_mean']:.3f} ± {row['eval/reward_stderr']:.3f}" if row["eval/tasks"] else "unknown"
        self.say(
            f"held-out after step {step}: reward {mean} "
            f"({row['eval/tasks']:.0f} tasks, {row['eval/trials']:.0f} trials){ungraded}"
        )

    def finished(self, trajectory: Trajectory) -> None:
        """Count a finished trial, and print a fault."""
        self._state.finished(trajectory)
        if trajectory.outcome in (Outcome.INFRASTRUCTURE_ERROR, Outcome.VERIFIER_ERROR) and self._live is None:
            self.say(f"  {trajectory.trial_name} {trajectory.outcome.value}: {trajectory.detail}")

    def _print(self, text: str) -> None:
        elapsed = time.monotonic() - self._start
        line = f"[{int(elapsed // 60):3d}:{elapsed % 60:04.1f}] {indented(text)}"
        with self._lock:
            try:
                self._console.print(line, markup=False)
            except OSError as error:  # its reader or its terminal is gone, its disk full
                if self._stop is None:
                    raise
                drop_output(self._console.file)
                why = f"the output cannot be written ({error.strerror})"
                self._warn(logging.WARNING, f"{why}; {self._stop.resume_hint or 'the run ends'}")
                self._stop.request_soon(why, PIPE_STATUS)

    def _warn(self, level: int, text: str) -> None:
        """Print a warning; the log file has it already."""
        line = f"{logging.getLevelName(level)}: {text}"
        if self._live is not None:
            self._print(line)
        else:
            with contextlib.suppress(OSError):  # nothing reads it
                print(indented(line), file=self._errors, flush=True)

    def _notes(self) -> Notes:
        """The cost so far, and the effect of Ctrl-C or the progress of a stop."""
        stop, notes = self._stop, {"cost": self.spent()} if self.spent is not None else {}
        if stop is None:
            return notes | {"Ctrl-C": "ends it; finished trials are kept"}
        if stop.asked:
            how = "may finish" if stop.lets_end else "are cancelled"
            trials = f"running trials {how}, then " if self._under_way else ""
            return notes | {"stop": f"{stop.why}: {trials}the weights are saved; {AT_ONCE}"}
        if not self._has_trials:
            return notes | {"Ctrl-C": f"saves the weights and ends; {AT_ONCE}"}
        if not self._began:
            return notes | {"Ctrl-C": "ends the run before it begins"}
        return notes | {"Ctrl-C": f"cancels running trials, saves the weights and ends; {AT_ONCE}"}


def _activity(label: str) -> tuple[str, str]:
    """The run's activity while trials of that label run, and after them."""
    kind, _, number = label.partition(" ")
    if kind == "step":
        step = f"step {int(number) + 1}"
        return f"{step}: sampling", f"{step}: update of the weights"
    return f"evaluation after step {number}" if kind == "eval" else label, "saving"
