"""Findings of a qualification: the report of a task, and the rules from trials to findings. Pure."""

import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from harbortrainer.commands import command
from harbortrainer.docker.integrity.allowed import thing_of
from harbortrainer.qualify.attacks import WORK_ATTACKS
from harbortrainer.qualify.trials import QualificationTrial
from harbortrainer.venues.harbor.install import COULD_NOT_INSTALL, code, fetching, scripts

NETWORK = "not checked: network, disk or daemon"  # what may succeed later: no verdict, and not cached
_DAEMON = ("ReadTimeout", "ConnectionError", "ConnectTimeout")  # faults of trials that Docker left unanswered
UNSAMPLED = "not checked: trials"  # of a task that is not in the sample
HOLLOW = "hollow work"
STATIC = {"empty work", "imported work"}  # the same in files that the tests' text names
SHOWN = 3  # names in a detail


class Severity(StrEnum):
    ERROR = "error"  # the task cannot be trusted: do not train on it
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    level: Severity
    detail: str


@dataclass(slots=True)
class TaskReport:
    """One task's qualification. `oracle`: rewards of fresh trials; `repeats`: later runs of their verifiers."""

    name: str
    path: str
    digest: str
    findings: list[Finding] = field(default_factory=list)
    oracle: list[float | None] = field(default_factory=list)
    repeats: int = 0
    no_op: float | None = None
    build_sec: float = 0.0
    trial_sec: float = 0.0
    cached: bool = False

    @property
    def bad(self) -> bool:
        return any(one.level is Severity.ERROR for one in self.findings)

    @property
    def passing(self) -> bool:
        """Whether it says nothing about the task."""
        return any(one.kind in (NETWORK, UNSAMPLED) for one in self.findings)

    @property
    def reason(self) -> str:
        return "; ".join(f"{one.kind}: {one.detail}" for one in self.findings if one.level is Severity.ERROR)

    @property
    def verdict(self) -> str:
        if self.bad:
            return "bad"
        return "good" if self.oracle and not self.passing else "unproven"

    def add(self, kind: str, level: Severity, detail: str) -> None:
        self.findings.append(Finding(kind, level, detail))


def judge_oracle(trials: Sequence[QualificationTrial]) -> list[Finding]:
    """Return every fresh trial must earn 1, and every repeat of its verifier the same."""
    faults = [one.fault for one in trials if one.reward is None]
    if lost := [fault for fault in faults if fault.startswith(_DAEMON)]:
        return [Finding(NETWORK, Severity.WARNING, f"{lost[0]} ({len(lost)} of {len(trials)} trials)")]
    if faults:
        hangs = any("VerifierTimeout" in fault for fault in faults)
        offline = all(fault.startswith(COULD_NOT_INSTALL) for fault in faults)
        kind = "hanging verifier" if hangs else "verifier needs network" if offline else "oracle fails"
        why = next(one.why or one.fault for one in trials if one.reward is None)
        return [Finding(kind, Severity.ERROR, f"{why} ({len(faults)} of {len(trials)} trials)")]
    rewards = [one.reward or 0.0 for one in trials]
    won = sum(reward >= 1 for reward in rewards)
    if 0 < won < len(trials):
        return [Finding("flaky", Severity.ERROR, f"the oracle earned {_listed(rewards)} in fresh trials")]
    if won == 0:
        return [
            Finding("oracle fails", Severity.ERROR, f"{trials[0].why} (the oracle earned {_listed(rewards)}, not 1)")
        ]
    return _judge_repeats(trials)


def _judge_repeats(trials: Sequence[QualificationTrial]) -> list[Finding]:
    values = [reward_of(again) for one in trials for again in one.repeats]
    lost = sum(value != 1 for value in values)
    if lost == 0:
        return []
    if lost == len(values):  # it changes what it grades
        detail = "never passes a second time on the same state: flakiness was looked for in fresh trials only"
        return [Finding("verifier not repeatable", Severity.WARNING, detail)]
    return [
        Finding("flaky", Severity.ERROR, f"the verifier refused the oracle's work in {lost} of {len(values)} repeats")
    ]


def judge_no_op(trial: QualificationTrial) -> list[Finding]:
    """Return a trial that does nothing must be graded, and must not pass at any repeat."""
    if trial.reward is None and trial.fault.startswith(_DAEMON):
        return [Finding(NETWORK, Severity.WARNING, f"doing nothing: {trial.fault}")]
    if trial.reward is None:
        kind = "hanging verifier" if "VerifierTimeout" in trial.fault else "no-op is not graded"
        return [Finding(kind, Severity.ERROR, f"doing nothing: {trial.why or trial.fault}")]
    if trial.reward >= 1:
        return [Finding("no-op passes", Severity.ERROR, f"doing nothing earned {trial.reward:g}")]
    again = [value for value in map(reward_of, trial.repeats) if not math.isnan(value)]
    won = sum(value >= 1 for value in again)
    if won == len(again) > 0:
        detail = "passes without any work when it is run again on the same state"
        return [Finding("verifier not repeatable", Severity.WARNING, detail)]
    if won:
        return [
            Finding("flaky", Severity.ERROR, f"doing nothing passed in {won} of {len(again)} repeats of the verifier")
        ]
    if trial.reward > 0:
        return [Finding("no-op earns something", Severity.WARNING, f"doing nothing earned {trial.reward:g}")]
    return []


def judge_attacks(
    rewards: Mapping[str, float | None], no_op: float, warned: Collection[str] = (), work: Collection[str] = ()
) -> list[Finding]:
    """`warned`: attacks that do not make the task a bad one. `work`: files that those on the work wrote."""
    earned = {kind: reward for kind, reward in rewards.items() if reward is not None and reward > no_op}
    files = f": {', '.join(sorted(work)[:SHOWN])}{' …' if len(work) > SHOWN else ''}"
    return [
        Finding(
            f"hack: {kind}",
            Severity.WARNING if kind in warned else Severity.ERROR,
            f"earned {reward:g} without the work (doing nothing: {no_op:g}){files if kind in WORK_ATTACKS else ''}",
        )
        for kind, reward in earned.items()
    ]


def judge_stranger(task: Path, unasked: Sequence[str]) -> list[Finding]:
    """`unasked`: on what the oracle's reward depends, for all that the instruction says; others could choose it."""
    if not unasked:
        return []
    names = [one.encode("unicode_escape").decode("ascii") for one in unasked[:SHOWN]]
    things = map(thing_of, names)
    more = f" (and {len(unasked) - SHOWN} more)" if len(unasked) > SHOWN else ""
    detail = (
        f"verification needs {', '.join(names)}{more}, which the instruction does not name: an honest trial that does "
        "it elsewhere gets no reward. Name the place in the instruction, or allow others: "
        f"{command('tasks allow')} {shlex.join([str(task), *things])}{more}"
    )
    return [Finding("honest work may be unasked", Severity.WARNING, detail)]


def fetches(task: Path) -> list[Finding]:
    """Return notes on scripts that fetch from the network; requests to the same host do not count."""
    found: list[Finding] = []
    for who, files in (("verifier", scripts(task)), ("oracle", task.glob("solution/**/*.sh"))):
        words = set(fetching("\n".join(map(code, files))))
        if words:
            found.append(Finding(f"{who} fetches", Severity.NOTE, f"its scripts call {', '.join(sorted(words))}"))
    return found


_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"


def reward_of(written: str) -> float:
    """Return the reward in a file's text, as Harbor reads it; NaN = none."""
    numbers = re.findall(_NUMBER, written)
    named = re.search(rf'"reward"\s*:\s*({_NUMBER})', written)
    return float(named.group(1)) if named else float(numbers[0]) if numbers else math.nan


def _listed(rewards: Sequence[float]) -> str:
    return ", ".join(f"{reward:g}" for reward in rewards)
