"""What the rewards of each task came from, by the ledger's records: files and services, and which of them spread."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harbortrainer.learning.trajectory import Trajectory

MOST = 1000  # names of a task that are remembered; the rarest are forgotten first
NEWEST = 8  # rewarded trials of a task that are compared with those before
RARE = 16  # a name that one in so many trials had is still a new one
SHOWN, CHARACTERS = 3, 80  # names in a line of the log, and characters of each


@dataclass(slots=True)
class Name:
    """A file or service. `trials`: how many rewarded trials had it; `newest`: the numbers of the last NEWEST of them.

    `first`: the first trial that had it; `spread`: the one with which it spread, "" = it did not.
    """

    text: str
    place: int
    first: str
    trials: int = 0
    newest: tuple[int, ...] = ()
    spread: str = ""


@dataclass(slots=True)
class RewardSource:
    """The sources of a task's rewards. `rewarded`: trials with a reward above 0 of which it is known what they depend
    on.

    `texts`: of all names in the ledger, by place; "" = forgotten.
    """

    rewarded: int = 0
    names: dict[str, Name] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def add(self, trial: str, places: Iterable[int]) -> None:
        """Count a rewarded trial."""
        self.rewarded += 1
        for place in places:
            if text := self.texts[place]:
                name = self.names.setdefault(text, Name(text, place, trial))
                name.trials += 1
                name.newest = (*name.newest, self.rewarded)[-NEWEST:]
                if not name.spread and self._spreads(name):
                    name.spread = trial
        extra = max(len(self.names) - MOST, 0)
        for name in sorted(self.names.values(), key=lambda one: (one.trials, one.newest))[:extra]:
            del self.names[name.text]
            self.texts[name.place] = ""

    def _spreads(self, name: Name) -> bool:
        """Whether half of the newest NEWEST rewarded trials have it, and hardly one of at least as many before did."""
        earlier = self.rewarded - NEWEST
        now = sum(number > earlier for number in name.newest)
        return earlier >= NEWEST and 2 * now >= NEWEST and RARE * (name.trials - now) <= earlier


class Provenance:
    """The sources of all rewards. `sources`: by task."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self.sources: defaultdict[str, RewardSource] = defaultdict(RewardSource)
        for record in records:
            self.count(record)

    def told(self, trajectory: Trajectory) -> dict[str, list[Any]]:
        """Return what the ledger's `ended` says of a trial that ends now; {} = nothing is known, or nothing was earned.

        `depends`: places of its names among all that the ledger has for the task, which `new` adds to.
        """
        if trajectory.depends is None or trajectory.reward is None or trajectory.reward <= 0:
            return {}
        source = self.sources[trajectory.task_name]
        new = [text for text in trajectory.depends if text not in source.names]
        places = {text: place for place, text in enumerate(new, len(source.texts))}
        places |= {text: source.names[text].place for text in trajectory.depends if text not in places}
        return {"depends": [places[text] for text in trajectory.depends], "new": new}

    def count(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the ledger."""
        if "depends" in record:
            source = self.sources[record["task"]]
            source.texts += record["new"]
            source.add(record["trial"], record["depends"])

    def spread(self, task: str, trial: str) -> str:
        """Return a line on the names that spread with this trial of the task; "" = none did."""
        found = [name for name in self.sources[task].names.values() if name.spread == trial]
        if not found:
            return ""
        shown = [printable(name.text)[:CHARACTERS] for name in found[:SHOWN]]
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return (
            f"task {task}: half of its newest {NEWEST} rewards came from {', '.join(shown)}{more}, and hardly one "
            f"before; first in {found[0].first}: read these trials"
        )


def printable(text: str) -> str:
    """Escape what is no printable character: a policy chooses the names of its files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
