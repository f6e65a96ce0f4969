"""ledger.jsonl: a line when a trial starts, a durable line when it ends, and one for each step that is trained on.

A trial that a killed process left open is closed on resume: from its trajectory's file if that was written, otherwise
as cancelled.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harbortrainer.commands import continuing
from harbortrainer.durable.jsonl import append_line, cut_torn_line, read_lines
from harbortrainer.errors import DiskFault, UserError
from harbortrainer.learning.batch import TrainingBatch
from harbortrainer.learning.datums import TrainingSequence, count_tokens, digest
from harbortrainer.learning.pace import GroupSlot
from harbortrainer.learning.trajectory import (
    JUDGE_TOKENS,
    USER_TOKENS,
    BatchKind,
    Outcome,
    Trajectory,
    TrialName,
)
from harbortrainer.learning.treatment import AFTER_OUTAGE, UNFIT
from harbortrainer.run.by_host import HostCounts
from harbortrainer.run.provenance import Provenance
from harbortrainer.run.trajectories import read_trajectory

FUNNEL = (
    "started", "finished", "graded", "trained", "masked", "replaced", "dropped", "quarantined", "cancelled",
)  # fmt: skip
STAGES = ("environment", "agent_setup", "agent", "verifier")  # in order; a trial ended in the last one that it reached
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # while the machine sleeps, too
_BOOTED = time.time() - time.clock_gettime(_SINCE_BOOT)  # hours are paid for: setting the clock adds none
KILLED = "the process was killed"  # cause of a trial that the next process closes
log = logging.getLogger("harbortrainer")


class Ledger:
    """The journal of all trials of a run, over all its processes.

    `counts`: trials so far by name of FUNNEL.
    """

    def __init__(
        self, path: Path, follow: Callable[[Mapping[str, Any]], None] = lambda _: None, context_limit: int = 0
    ) -> None:
        """`follow` gets each record, those on disk first, from any thread.

        `context_limit`: of this process; a first prompt that was too long for another one counts no more, 0 = for any.
        Raises UserError that names a damaged line or trajectory, DiskFault when the file cannot be written.
        """
        self._path = path
        self._follow = follow
        self._context_limit = context_limit
        self._lock = threading.RLock()  # trials are written down from threads
        self._steps: dict[int, Mapping[str, Any]] = {}  # records of the updates that count
        self._digests: dict[int, str] = {}  # of every step that was ever trained on
        self.composed: dict[int, list[GroupSlot]] = {}  # groups of each step, with max_steps_off_policy
        self.step_of: dict[GroupSlot, int] = {}  # the same by group
        self.task_of: dict[
            GroupSlot, str
        ] = {}  # the task of each group's last trial, which may stand in for another one
        self.counts: Counter[str] = Counter()
        self.quarantined: dict[str, str] = {}
        self._hosts = HostCounts()
        self._provenance = Provenance()
        self._agents: dict[str, str] = {}  # of trials that run
        self._attempts: dict[str, tuple[int, int]] = {}  # by slot
        self._faults: dict[str, list[Trajectory]] = {}  # by task, since its last grade
        cut_torn_line(path)
        self._begun = path.exists()
        self._read()

    def started(self, trial_name: str, task_name: str, attempt: int, host: str = "", agent: str = "") -> None:
        """Record a start; not fsynced, since a crash of the machine that loses this line also loses the trial.

        `host`: "" = the machine of the run. `agent`: "" = the policy alone, in a conversation without a container.
        """
        record = {"event": "started", "trial": trial_name, "task": task_name, "attempt": attempt}
        optional = {"host": host, "agent": agent, "conversation": not agent}
        self._append(record | {name: value for name, value in optional.items() if value}, durable=False)

    def ended(self, trajectory: Trajectory, disposition: str, at: float | None = None) -> None:
        """`disposition`: graded, dropped, quarantined, cancelled or "replaced by TRIAL", perhaps with AFTER_OUTAGE.

        `at`: when, in Unix seconds; None = now. Warns of a file or service from which a task's rewards begin to come.
        """
        optional: dict[str, Any] = {"agent": self._agents.get(trajectory.trial_name, "")}
        optional |= {name: int(trajectory.stats.get(name, 0)) for name in (*USER_TOKENS, *JUDGE_TOKENS)}
        optional |= self._hosts.where(trajectory)
        optional |= {} if at is None else {"time": round(at, 3)}
        optional |= {"context_limit": self._context_limit} if trajectory.detail.startswith(UNFIT) else {}
        record = {
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
            "fate": disposition,
        }
        record |= {name: value for name, value in optional.items() if value}
        with self._lock:
            self._append(record | self._provenance.told(trajectory))
            line = self._provenance.spread(trajectory.task_name, trajectory.trial_name)
        if line:
            log.warning("%s", line)

    def trained(
        self,
        step: int,
        batch: TrainingBatch,
        updates: Sequence[Sequence[str]],
        scored: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Record the update of `step`. `updates`: trials of each optimizer step, in order; none for a skipped batch.

        A trial of the batch that is in none of them is too far from the policy to learn from.
        `scored`: tokens that other weights scored, by trial. Warns when the step was trained on before a restored state
        with another batch.
        """
        tokens = count_tokens(batch.sequences_D)
        trials = list(tokens)
        record = self._update(step, batch.sequences_D, len(updates)) | {
            "trials": trials,
            "tokens": [tokens[trial] for trial in trials],  # of its datums, prompts included
            "scored": [scored.get(trial, 0) for trial in trials],  # by kl_reference and the start
            "rewards": batch.rewards,
            "advantages": batch.advantages,
        }
        learned = {trial for part in updates for trial in part}
        too_far = [trial for trial in trials if trial not in learned]
        optional = {"masked": list(batch.masked), "left_out": batch.left_out, "too_far": too_far}
        optional |= {"observing": batch.observing}  # of these trials only the observations teach
        record |= {name: value for name, value in optional.items() if value}
        if len(updates) > 1:
            record["updates"] = [list(part) for part in updates]
        self._append(record)

    def taught(self, step: int, sequences_D: Sequence[TrainingSequence]) -> None:
        """Record the update of `step` on conversations, which are not trials. Warns like `trained`."""
        names = [sequence.trial_name for sequence in sequences_D]
        record = self._update(step, sequences_D, 1) | {
            "trials": [],
            "conversations": list(dict.fromkeys(names)),
            "conversation_tokens": sum(len(sequence.tokens_T) for sequence in sequences_D),
        }
        self._append(record)

    def scored(self, step: int, tokens: int) -> None:
        """Record that the policy after `step` was measured on `tokens` tokens of held-out conversations."""
        self._append({"event": "scored", "step": step, "tokens": tokens})

    def compose(self, step: int, places: Sequence[GroupSlot]) -> None:
        """Record, before the update, which groups `step` trains on; not needed where they are those of its batch."""
        self._append({"event": "composed", "step": step, "groups": [list(place) for place in places]})

    def resumed(self, step: int) -> None:
        """Record that the run continues after `step`: later updates do not count, they will be repeated."""
        self._append({"event": "resumed", "step": step})

    def reusable(self, kind: BatchKind, stored: Mapping[str, Trajectory]) -> dict[str, Trajectory]:
        """Return those of the trials on disk that are not run again, graded ones first.

        Once a group was trained on, it is final: its ungraded trials are not run again either.
        """
        settled = {name for name in stored if kind == "step" and self.trained_on(TrialName.parse(name))}
        graded = {name: trajectory for name, trajectory in stored.items() if trajectory.reward is not None}
        return graded | {name: trajectory for name, trajectory in stored.items() if name in settled}

    @property
    def steps_trained(self) -> int:
        """Number of steps that were ever trained on, including those that a restored state repeats."""
        return max(self._digests, default=-1) + 1

    def attempts(self, first: str) -> tuple[int, int]:
        """Get trials that ended in the slot of the trial `first`, and the faults among them that cost an attempt.

        A cancelled trial is run again under its own name. A slot that was given up starts to count anew.
        """
        return self._attempts.get(first, (0, 0))

    @property
    def faults_in_a_row(self) -> list[Trajectory]:
        """Failed trials of each task since its last grade, in order, without turns and without those of an outage."""
        return [trajectory for faults in self._faults.values() for trajectory in faults]

    def metrics(self) -> dict[str, float]:
        """Return the funnel so far, over the whole run and its evaluations; the same by host, with hosts."""
        return {f"funnel/{stage}": float(self.counts[stage]) for stage in FUNNEL} | self._hosts.metrics()

    def summary(self) -> str:
        """Return the funnel in one line."""
        c = self.counts
        text = "trials: " + ", ".join(f"{c[stage]} {stage}" for stage in FUNNEL[:4])
        lost = ", ".join(f"{c[stage]} {stage}" for stage in FUNNEL[4:] if c[stage])
        return f"{text} ({lost})" if lost else text

    def trained_on(self, trial: TrialName) -> bool:
        """Return whether a step was ever trained on the group of the trial."""
        step = self.step_of.get(GroupSlot(trial.step, trial.problem)) if self.composed else trial.step
        return step in self._digests

    def _update(self, step: int, sequences_D: Sequence[TrainingSequence], optimizer_steps: int) -> dict[str, Any]:
        """The record of an update: what is the same for trials and for conversations."""
        before, now = self._digests.get(step), digest(sequences_D)
        record = {
            "event": "trained",
            "step": step,
            "optimizer_steps": optimizer_steps,
            "first_optimizer_step": 1 + sum(r["optimizer_steps"] for n, r in self._steps.items() if n < step),
            "datums": len(sequences_D),
            "digest": now,
        }
        if before in (None, now):
            return record
        log.warning(
            "step %d was trained on before, with other datums (%s, now %s): its trials on disk or the settings "
            "have changed since; both records are in %s", step, before, now, self._path,
        )  # fmt: skip
        return record | {"differs_from": before}

    def _append(self, record: dict[str, Any], *, durable: bool = True) -> None:
        record = {"time": round(_BOOTED + time.clock_gettime(_SINCE_BOOT), 3), **record}
        with self._lock:
            if self._begun and not self._path.exists():
                folder = self._path.parent
                raise DiskFault(
                    f"{folder}: was removed or renamed while the run writes there; give it its name back, then "
                    f"continue with: {continuing(folder)}"
                )
            append_line(self._path, record, durable=durable, checked=True)
            self._begun = True
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
                fate = "dropped" if trajectory.reward is None else "graded"
                self.ended(trajectory, fate, stored.stat().st_mtime)  # it has cost nothing since
                continue
            lost = Trajectory(record["task"], name, (), None, Outcome.CANCELLED, KILLED, attempt=record["attempt"])
            self.ended(lost, "cancelled")

    def _count(self, record: Mapping[str, Any]) -> None:
        self._follow(record)
        self._hosts.count(record)
        self._provenance.count(record)
        match record["event"]:
            case "started":
                self.counts["started"] += 1
                self._agents[record["trial"]] = record.get("agent", "")
                if (trial := TrialName.parse(record["trial"])).kind == "step":
                    self.task_of[GroupSlot(trial.step, trial.problem)] = record["task"]
            case "ended":
                self._count_end(record)
            case "trained":
                self._forget(record["step"])
                self._steps[record["step"]] = record
                self._add(record, 1)
                self._digests[record["step"]] = record["digest"]
            case "composed":
                self.composed[record["step"]] = [GroupSlot(batch, problem) for batch, problem in record["groups"]]
                self.step_of.update((place, record["step"]) for place in self.composed[record["step"]])
            case "resumed":
                for step in [step for step in self._steps if step >= record["step"]]:
                    self._forget(step)

    def _forget(self, step: int) -> None:
        if (record := self._steps.pop(step, None)) is not None:
            self._add(record, -1)

    def _add(self, record: Mapping[str, Any], sign: int) -> None:
        too_far = len(record.get("too_far", ()))
        self.counts["trained"] += sign * (len({*record["trials"]}.difference(record.get("observing", ()))) - too_far)
        self.counts["masked"] += sign * (len(record.get("masked", ())) + too_far)

    def _count_end(self, record: Mapping[str, Any]) -> None:
        disposition = record["fate"].split()[0]
        self._agents.pop(record["trial"], None)
        self.counts["finished"] += disposition != "cancelled"
        self.counts[disposition] += 1
        hit_by_outage = record["fate"].endswith(AFTER_OUTAGE)
        first = str(TrialName.parse(record["trial"]).first)
        if disposition == "replaced":
            self._attempts[first] = record["attempt"], self.attempts(first)[1] + (not hit_by_outage)
        elif disposition != "cancelled":
            self._attempts[first] = record["attempt"], 0
        limit = self._context_limit
        if limit and record["cause"].startswith(UNFIT) and record.get("context_limit") != limit:
            return
        if record["reward"] is not None:
            self._faults.pop(record["task"], None)
        elif disposition != "cancelled" and not hit_by_outage:
            outcome = Outcome(record["outcome"])
            fault = Trajectory(record["task"], record["trial"], (), None, outcome, record["cause"])
            self._faults.setdefault(record["task"], []).append(fault)
        if disposition == "quarantined":
            self.quarantined.setdefault(record["task"], f"{record['outcome']}: {record['cause']}")


def require_ledger(path: Path, field: str = "resume=") -> None:
    """Raise UserError, which begins with `field`, when the folder has work of a run that its ledger does not count."""
    run, records = path.parent, read_lines(path, checked=True)
    trained = {record["step"] + 1 for record in records if record["event"] == "trained"}
    steps = {row["global_step"] for row in read_lines(run / "metrics.jsonl")}
    steps |= {record["step"] for record in read_lines(run / "checkpoints.jsonl")}
    stored = not records and next((run / "trajectories").glob("*/*.npz"), None) is not None
    if stored or max(steps, default=0) > max(trained, default=0):
        raise UserError(
            f"{field}{run}: {path.name}, which counts its trials and tokens, is missing or cut; restore it or start a "
            "new run"
        )


def updates_that_count(records: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the record of each step's update, by step, without those that a restored state undid."""
    updates: dict[int, Mapping[str, Any]] = {}
    for record in records:
        if record.get("event") == "trained":
            updates[record["step"]] = record
        elif record.get("event") == "resumed":
            updates = {step: kept for step, kept in updates.items() if step < record["step"]}
    return dict(sorted(updates.items()))
