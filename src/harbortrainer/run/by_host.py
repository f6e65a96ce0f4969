"""Trials of a run by the host that ran them, from the ledger's records; empty for a run on one machine."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harbortrainer.learning.trajectory import Trajectory

MOST = 20  # hosts with metrics of their own: those with the most trials


@dataclass(slots=True)
class HostCount:
    """The count of trials that have ended and were not cancelled. `faults`: without a grade; `starts`: environments
    started.
    """

    trials: int = 0
    faults: int = 0
    starts: int = 0
    start_sec: float = 0.0  # sum
    busy_sec: float = 0.0  # with at least one trial
    began: float = 0.0  # of the time since which it has had one
    running: int = 0

    @property
    def mean_start_sec(self) -> float | None:
        return self.start_sec / self.starts if self.starts else None


class HostCounts:
    """Counts. `counts`: by host, in the order in which they got their first trial."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self.counts: dict[str, HostCount] = {}
        self._last = 0.0  # time of the last start or end of a trial
        self._running: dict[str, str] = {}  # host of each trial
        for record in records:
            self.count(record)

    def where(self, trajectory: Trajectory) -> dict[str, str | float]:
        """Return what the ledger's `ended` says of the host of a trial that ends now."""
        host = self._running.get(trajectory.trial_name, "")
        seconds = trajectory.times.get("environment", 0.0)
        return {"host": host, "start_sec": round(seconds, 3)} if host else {}

    def count(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the ledger.

        A cancelled trial counts as running up to the record before: that of a killed process is ended by the next one.
        """
        host = record.get("host", "")
        if not host:
            return
        cancelled = record.get("fate") == "cancelled"
        now = self._last if cancelled else record.get("time", 0.0)
        count, trial, self._last = self.counts.setdefault(host, HostCount()), record["trial"], now
        if record["event"] == "started":
            if not count.running:
                count.began = now
            count.running += trial not in self._running
            self._running[trial] = host
            return
        if self._running.pop(trial, None) is not None:
            count.running -= 1
            if not count.running:
                count.busy_sec += now - count.began
        if not cancelled:
            count.trials += 1
            count.faults += record.get("reward") is None
            count.starts += "start_sec" in record
            count.start_sec += record.get("start_sec", 0.0)

    def metrics(self) -> dict[str, float]:
        """Return the metrics so far, of at most MOST hosts."""
        found: dict[str, float] = {}
        for name in sorted(self.counts, key=lambda name: -self.counts[name].trials)[:MOST]:
            count = self.counts[name]
            found |= {f"hosts/trials/{name}": float(count.trials), f"hosts/faults/{name}": float(count.faults)}
            if (seconds := count.mean_start_sec) is not None:
                found[f"hosts/start_sec/{name}"] = seconds
        return found
