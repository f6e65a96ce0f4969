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

    @property
    def mean_start_sec(self) -> float | None:
        return self.start_sec / self.starts if self.starts else None


class HostCounts:
    """Counts. `counts`: by host, in the order in which they got their first trial."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self.counts: dict[str, HostCount] = {}
        self._running: dict[str, str] = {}  # host of each trial
        for record in records:
            self.count(record)

    def where(self, trajectory: Trajectory) -> dict[str, str | float]:
        """Return what the ledger's `ended` says of the host of a trial that ends now."""
        host = self._running.get(trajectory.trial_name, "")
        seconds = trajectory.times.get("environment", 0.0)
        return {"host": host, "start_sec": round(seconds, 3)} if host else {}

    def count(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the ledger."""
        host = record.get("host", "")
        if not host:
            return
        count = self.counts.setdefault(host, HostCount())
        if record["event"] == "started":
            self._running[record["trial"]] = host
            return
        self._running.pop(record["trial"], None)
        if record.get("fate") != "cancelled":
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
