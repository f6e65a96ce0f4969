"""A task, whatever the venue of its trials is."""

from dataclasses import dataclass
from pathlib import Path

FOLDERS = "harbor"  # the venue of task directories


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `ref`: what its venue finds it by, a directory or a name; other code gives it back unread.

    `digest`: changes with anything that the task consists of. `source`: name of the source it comes from; `domain`: its
    category, else its source. `side`: "train" or "test" where the data set has a split of its own. "" = none.
    `family`: by its name, beside what its files say. `difficulty`: the part of the scale that it was measured in.
    `floor`: the reward of doing nothing, None = unknown. `clean`: of a task on the test side, whether no task on the
    training side is related.
    """

    name: str
    ref: Path | str
    digest: str
    source: str = ""
    domain: str = ""
    venue: str = FOLDERS
    side: str = ""
    floor: float | None = None
    clean: bool | None = None
    family: str = ""
    difficulty: str = ""

    @property
    def has_user(self) -> bool:
        """Whether its trials talk to a user."""
        return self.venue != FOLDERS
