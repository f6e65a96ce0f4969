"""What became of every trial that was started: a line when it starts, a durable one when it ends, one a step.

A trial that a killed process left open is closed as cancelled when the run goes on.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from src.learning.trajectory import Outcome, Trajectory
from src.run.jsonl import append_line, cut_torn_line, read_lines

FUNNEL = ("started", "finished", "graded", "trained", "replaced", "dropped", "quarantined", "cancelled")
STAGES = ("environment", "agent_setup", "agent", "verifier")  # in order; a trial ended in the last one that it reached


class Ledger:
    """`counts`: started, finished, graded, trained, replaced, dropped, quarantined: trials of the whole run so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # trials are written down from threads
        self._trained: dict[int, int] = {}  # step -> trials
        self.counts: Counter[str] = Counter()
        self.quarantined: dict[str, str] = {}
        cut_torn_line(path)
        self._read()

    def started(self, trial_name: str, task_name: str, attempt: int) -> None:
        """Not fsynced: when the machine dies with this line, nothing of the trial is left anyway."""
        self._append({"event": "started", "trial": trial_name, "task": task_name, "attempt": attempt}, durable=False)

    def ended(self, trajectory: Trajectory, fate: str) -> None:
        """`fate`: graded, dropped, quarantined, or "replaced by TRIAL"."""
        self._append(
            {
                "event": "ended",
                "trial": trajectory.trial_name,
                "task": trajectory.task_name,
                "attempt": trajectory.attempt,
                "outcome": trajectory.outcome.value,
                "cause": trajectory.detail,
                "stage": next((stage for stage in reversed(STAGES) if stage in trajectory.times), "creation"),
                "reward": trajectory.reward,
                "turns": len(trajectory.turns),
                "sampled_tokens": trajectory.n_sampled_tokens,
                "seconds": round(trajectory.times.get("total", 0.0), 3),
                "fate": fate,
            }
        )

    def trained(self, step: int, advantages: Mapping[str, float], trials: Sequence[str], optimizer_steps: int) -> None:
        """After the update of `step`: every graded trial's advantage, and the trials that its datums were made of."""
        record = {"event": "trained", "step": step, "optimizer_steps": optimizer_steps}
        self._append(record | {"trials": list(trials), "advantages": dict(advantages)})

    def resumed(self, step: int) -> None:
        """The run goes on after `step`; updates that were made after it do not count: they are made again."""
        self._append({"event": "resumed", "step": step})

    def metrics(self) -> dict[str, float]:
        """The funnel so far, over the whole run and all its evaluations."""
        return {f"funnel/{stage}": float(self.counts[stage]) for stage in FUNNEL}

    def summary(self) -> str:
        """The funnel in one line."""
        c = self.counts
        text = "trials: " + ", ".join(f"{c[stage]} {stage}" for stage in FUNNEL[:4])
        lost = ", ".join(f"{c[fate]} {fate}" for fate in FUNNEL[4:] if c[fate])
        return f"{text} ({lost})" if lost else text

    def _append(self, record: dict[str, Any], *, durable: bool = True) -> None:
        record = {"time": round(time.time(), 3), **record}
        with self._lock:
            append_line(self._path, record, durable=durable, checked=True)
            self._count([record])

    def _read(self) -> None:
        records = read_lines(self._path)
        self._count(records)
        open_trials: dict[str, dict[str, Any]] = {}
        for record in records:
            if record["event"] == "started":
                open_trials[record["trial"]] = record
            elif record["event"] == "ended":
                open_trials.pop(record["trial"], None)
        for name, record in open_trials.items():
            killed = Outcome.CANCELLED
            self.ended(Trajectory(record["task"], name, (), None, killed, "the process was killed"), "cancelled")

    def _count(self, records: Sequence[Mapping[str, Any]]) -> None:
        for record in records:
            match record["event"]:
                case "started":
                    self.counts["started"] += 1
                case "ended":
                    self._count_end(record)
                case "trained":
                    self._trained[record["step"]] = len(record["trials"])
                case "resumed":
                    self._trained = {step: n for step, n in self._trained.items() if step < record["step"]}
        self.counts["trained"] = sum(self._trained.values())

    def _count_end(self, record: Mapping[str, Any]) -> None:
        fate = record["fate"].split()[0]
        self.counts["finished"] += fate != "cancelled"
        self.counts[fate] += 1
        if fate == "quarantined":
            self.quarantined.setdefault(record["task"], f"{record['outcome']}: {record['cause']}")
