"""Counts what a run has spent, by purpose, from the records of its ledger."""

import threading
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from harbortrainer.learning.batch import CONSTANT, NO_SIGNAL
from harbortrainer.learning.trajectory import TrialName
from harbortrainer.run.ledger import KILLED

# trained: trials of groups with a signal, and the update on them
# constant: trials of groups in which all advantages are 0, trained on or not
# left_out: graded, but not trained on for another reason (masked, group too small)
# failed: replaced, dropped or quarantined; cancelled: by the run
# user, judge: tokens of these models in all trials
BESIDE = ("user", "judge")
PURPOSES = ("trained", "constant", "left_out", "failed", "cancelled", "evaluation", *BESIDE)
TINY = 1e-9  # smaller advantages count as 0


@dataclass(frozen=True, slots=True)
class Spending:
    """Tokens and seconds. `prompt`: tokens of every prompt, whole at each turn, and of sequences that other weights
    scored; `trained`:
    tokens of datums; `container_sec`: sum over trials of the time from start to end; `user_*`, `judge_*`: tokens of
    these models, which have prices of their own.
    """

    prompt: float = 0.0
    sampled: float = 0.0
    trained: float = 0.0
    container_sec: float = 0.0
    user_prompt: float = 0.0
    user_sampled: float = 0.0
    judge_prompt: float = 0.0
    judge_sampled: float = 0.0

    @property
    def tokens(self) -> float:
        return self.prompt + self.sampled + self.trained + sum(sum(self.beside(name)) for name in BESIDE)

    def beside(self, name: str) -> tuple[float, float]:
        """Return (prompt, sampled) tokens of the model beside the policy with this name, one of BESIDE."""
        return getattr(self, f"{name}_prompt"), getattr(self, f"{name}_sampled")

    def __add__(self, other: "Spending") -> "Spending":
        return Spending(*map(sum, zip(astuple(self), astuple(other), strict=True)))


class Account:
    """Counts spending. `scores`: whether a reference scores all that is trained on (KL penalty)."""

    def __init__(self, *, scores: bool = False) -> None:
        self.total = Spending()
        self.hours = 0.0  # from each process's first record to its last
        self._by: dict[str, Spending] = dict.fromkeys(PURPOSES, Spending())
        self._open: dict[TrialName, Spending] = {}  # graded trials of a batch that is not settled
        self._composed: dict[int, set[tuple[int, int]]] = {}  # groups by step, where steps are not batches
        self._started: dict[str, float] = {}  # clock time of trials under way
        self._last: float | None = None  # clock time of the last record
        self._scores = scores
        self._lock = threading.Lock()

    def count(self, record: Mapping[str, Any]) -> None:
        """Count a record of the ledger; from any thread."""
        with self._lock:
            if record["event"] == "started":
                if not record.get("conversation"):  # it has no container
                    self._started[record["trial"]] = record["time"]
            elif record["event"] == "ended":
                self._count_end(record)
            elif record["event"] == "composed":
                self._composed[record["step"]] = {(batch, problem) for batch, problem in record["groups"]}
            elif record["event"] == "trained":
                self._count_update(record)
            elif record["event"] == "scored":
                self._spend("evaluation", Spending(prompt=record["tokens"]))
            self._count_time(record)

    @property
    def waiting(self) -> int:
        """The number of graded trials in a batch that is not trained on yet."""
        return len(self._open)

    def by_purpose(self) -> dict[str, Spending]:
        """Return spending on each of PURPOSES, without the trials that wait for their batch."""
        with self._lock:
            return dict(self._by)

    def _count_end(self, record: Mapping[str, Any]) -> None:
        name, disposition = TrialName.parse(record["trial"]), record["fate"].split()[0]
        now = self._last if record["cause"] == KILLED else record["time"]
        seconds = max(0.0, (now or 0.0) - self._started.pop(record["trial"], now or 0.0))
        spent = Spending(record["prompt_tokens"], record["sampled_tokens"], 0.0, seconds)
        self.total += spent
        for model in BESIDE:
            kinds = (f"{model}_prompt", f"{model}_sampled")
            self._spend(model, Spending(**{kind: record.get(f"{kind}_tokens", 0) for kind in kinds}))
        if disposition == "cancelled":
            self._by["cancelled"] += spent
        elif disposition != "graded":
            self._by["failed"] += spent
        elif name.kind == "eval":
            self._by["evaluation"] += spent
        else:
            self._open[name] = spent

    def _count_update(self, record: Mapping[str, Any]) -> None:
        # earlier versions did not write all of it
        advantages = record.get("advantages", dict.fromkeys(record["trials"], 1.0))
        signal = {TrialName.parse(name).group for name, advantage in advantages.items() if abs(advantage) > TINY}
        tokens = record.get("tokens", [0] * len(record["trials"]))
        all_scored = record.get("scored", tokens if self._scores else [0] * len(tokens))
        for trial, trained, scored in zip(record["trials"], tokens, all_scored, strict=True):
            name, learned = TrialName.parse(trial), trial not in record.get("too_far", ())
            purpose = "trained" if self._scores or name.group in signal else "constant"
            self._spend(purpose, Spending(scored, 0.0, trained * learned, 0.0))
            self._settle(name, purpose if learned else "left_out")
        self._spend("trained", Spending(trained=record.get("conversation_tokens", 0)))
        for name, why in record.get("left_out", {}).items():
            self._settle(TrialName.parse(name), "constant" if why in (CONSTANT, NO_SIGNAL) else "left_out")
        groups = self._composed.get(record["step"])
        for name in [*self._open]:  # of training only
            if name.step == record["step"] if groups is None else (name.step, name.problem) in groups:
                self._settle(name, "left_out")

    def _spend(self, purpose: str, spent: Spending) -> None:
        self.total += spent
        self._by[purpose] += spent

    def _settle(self, name: TrialName, purpose: str) -> None:
        self._by[purpose] += self._open.pop(name, Spending())

    def _count_time(self, record: Mapping[str, Any]) -> None:
        if record.get("cause") == KILLED:
            return
        if self._last is not None and record["event"] != "resumed":
            self.hours += max(0.0, record["time"] - self._last) / 3600
        self._last = record["time"]
