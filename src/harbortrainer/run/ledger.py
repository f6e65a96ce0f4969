"""What became of every trial that was started: a line when it starts, a durable one when it ends, one a step.

A trial that a killed process left open is closed when the run goes on: by its file, where that was written already,
otherwise as cancelled.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbortrainer.durable.jsonl import append_line, cut_torn_line, read_lines
from harbortrainer.learning.batch import TrainingBatch
from harbortrainer.learning.datums import digest
from harbortrainer.learning.trajectory import BatchKind, Outcome, Trajectory, TrialName
from harbortrainer.learning.treatment import AFTER_OUTAGE
from harbortrainer.run.trajectories import read_trajectory

FUNNEL = (
    "started", "finished", "graded", "trained", "masked", "replaced", "dropped", "quarantined", "cancelled",
)  # fmt: skip
STAGES = ("environment", "agent_setup", "agent", "verifier")  # in order; a trial ended in the last one that it reached
KILLED = "the process was killed"  # cause of a trial that the next process closes
log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class _Step:
    """What one batch became."""

    trained: int  # trials
    masked: int
    optimizer_steps: int


class Ledger:
    """`counts`: started, finished, graded, trained, masked, replaced, ...: trials of the whole run so far."""

    def __init__(self, path: Path, follow: Callable[[Mapping[str, Any]], None] = lambda _: None) -> None:
        """`follow` gets each record, those on disk first. It may be called from a thread.

        Raises UserError that names a damaged line or trajectory, DiskFault when it cannot be written.
        """
        self._path = path
        self._follow = follow
        self._lock = threading.Lock()  # trials are written down from threads
        self._steps: dict[int, _Step] = {}  # that count
        self._digests: dict[int, str] = {}  # of every step that was ever trained on
        self.counts: Counter[str] = Counter()
        self.quarantined: dict[str, str] = {}
        self._tried: dict[str, tuple[int, int]] = {}  # by place
        self._faults: dict[str, list[Trajectory]] = {}  # by task, since its last grade
        cut_torn_line(path)
        self._read()

    def started(self, trial_name: str, task_name: str, attempt: int) -> None:
        """Not fsynced: when the machine dies with this line, nothing of the trial is left anyway."""
        self._append({"event": "started", "trial": trial_name, "task": task_name, "attempt": attempt}, durable=False)

    def ended(self, trajectory: Trajectory, fate: str) -> None:
        """`fate`: graded, dropped, quarantined, cancelled, or "replaced by TRIAL" (AFTER_OUTAGE)."""
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
                "prompt_tokens": trajectory.n_prompt_tokens,
                "sampled_tokens": trajectory.n_sampled_tokens,
                "seconds": round(trajectory.times.get("total", 0.0), 3),
                "fate": fate,
            }
        )

    def trained(self, step: int, batch: TrainingBatch, updates: Sequence[Sequence[str]]) -> None:
        """After the update of `step`. `updates`: trials of each optimizer step, in order; none for a skipped batch.

        Where the step was trained on before, and is made again after a restored state, another batch is warned about.
        """
        before, now = self._digests.get(step), digest(batch.sequences_D)
        trials = list(dict.fromkeys(sequence.trial_name for sequence in batch.sequences_D))
        record = {
            "event": "trained",
            "step": step,
            "optimizer_steps": len(updates),
            "first_optimizer_step": 1 + sum(s.optimizer_steps for n, s in self._steps.items() if n < step),
            "datums": len(batch.sequences_D),
            "digest": now,
            "trials": trials,
            "tokens": _tokens(batch, trials),
            "rewards": batch.rewards,
            "advantages": batch.advantages,
        }
        optional = {"masked": list(batch.masked), "left_out": batch.left_out}
        record |= {name: value for name, value in optional.items() if value}
        if len(updates) > 1:
            record["updates"] = [list(part) for part in updates]
        if before not in (None, now):
            record["differs_from"] = before
            log.warning(
                "step %d was trained on before, with other datums (%s, now %s): its trials on disk or the settings "
                "were changed since; both records are in %s", step, before, now, self._path,
            )  # fmt: skip
        self._append(record)

    def resumed(self, step: int) -> None:
        """The run goes on after `step`; updates that were made after it do not count: they are made again."""
        self._append({"event": "resumed", "step": step})

    def reusable(self, kind: BatchKind, step: int, stored: Mapping[str, Trajectory]) -> dict[str, Trajectory]:
        """Those of a batch's trials on disk that are not run again, graded ones first.

        Once a step was trained on, its batch is settled: what nobody graded is not run again either.
        """
        settled = kind == "step" and step in self._digests
        graded = {name: trajectory for name, trajectory in stored.items() if trajectory.reward is not None}
        return graded | dict(stored) if settled else graded

    @property
    def steps_trained(self) -> int:
        """Steps that were ever trained on, those included that a restored state makes again."""
        return max(self._digests, default=-1) + 1

    def tried(self, place: str) -> tuple[int, int]:
        """Trials that ended at a place (named as its first one), and those that `max_attempts` counts.

        A cancelled one is run again under its own name. Places that were given up begin to count anew.
        """
        return self._tried.get(place, (0, 0))

    @property
    def faults_in_a_row(self) -> list[Trajectory]:
        """Trials of each task since its last grade, in order and without their turns; what an outage hit left out."""
        return [trajectory for faults in self._faults.values() for trajectory in faults]

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
            self._count(record)

    def _read(self) -> None:
        left_open: dict[str, dict[str, Any]] = {}
        for record in read_lines(self._path, checked=True):
            self._count(record)
            if record["event"] == "started":
                left_open[record["trial"]] = record
            elif record["event"] == "ended":
                left_open.pop(record["trial"], None)
        folders = [*(self._path.parent / "trajectories").glob("*")] if left_open else []
        for name, record in left_open.items():
            stored = next((path for folder in folders if (path := folder / f"{name}.npz").exists()), None)
            if stored is not None:  # killed between the file and this ledger's line
                trajectory = read_trajectory(stored)
                self.ended(trajectory, "dropped" if trajectory.reward is None else "graded")
                continue
            lost = Trajectory(record["task"], name, (), None, Outcome.CANCELLED, KILLED, attempt=record["attempt"])
            self.ended(lost, "cancelled")

    def _count(self, record: Mapping[str, Any]) -> None:
        self._follow(record)
        match record["event"]:
            case "started":
                self.counts["started"] += 1
            case "ended":
                self._count_end(record)
            case "trained":
                masked = len(record.get("masked", ()))
                self._forget(record["step"])
                self._steps[record["step"]] = _Step(len(record["trials"]), masked, record["optimizer_steps"])
                self.counts["trained"] += len(record["trials"])
                self.counts["masked"] += masked
                if "digest" in record:
                    self._digests[record["step"]] = record["digest"]
            case "resumed":
                for step in [step for step in self._steps if step >= record["step"]]:
                    self._forget(step)

    def _forget(self, step: int) -> None:
        if (made := self._steps.pop(step, None)) is not None:
            self.counts["trained"] -= made.trained
            self.counts["masked"] -= made.masked

    def _count_end(self, record: Mapping[str, Any]) -> None:
        fate = record["fate"].split()[0]
        self.counts["finished"] += fate != "cancelled"
        self.counts[fate] += 1
        hit = record["fate"].endswith(AFTER_OUTAGE)
        attempt = record["attempt"]
        place = str(TrialName.parse(record["trial"]).first)
        if fate == "replaced":
            faults = self.tried(place)[1] + (not hit)
            self._tried[place] = (attempt, faults)
        elif fate != "cancelled":
            self._tried[place] = (attempt, 0)
        if record["reward"] is not None:
            self._faults.pop(record["task"], None)
        elif fate != "cancelled" and not hit:
            outcome = Outcome(record["outcome"])
            fault = Trajectory(record["task"], record["trial"], (), None, outcome, record["cause"])
            self._faults.setdefault(record["task"], []).append(fault)
        if fate == "quarantined":
            self.quarantined.setdefault(record["task"], f"{record['outcome']}: {record['cause']}")


def _tokens(batch: TrainingBatch, trials: Sequence[str]) -> list[int]:
    """Of each trial's datums, prompts included."""
    tokens: Counter[str] = Counter()
    for sequence in batch.sequences_D:
        tokens[sequence.trial_name] += len(sequence.tokens_T)
    return [tokens[trial] for trial in trials]
