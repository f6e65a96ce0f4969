"""Venues by name: where trials take place. A venue's module is imported when a task source needs it."""

import importlib
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Protocol

from harbortrainer.errors import UserError
from harbortrainer.tasks.identity import Identity
from harbortrainer.tasks.task import FOLDERS, Task

MODULES = {
    FOLDERS: "harbortrainer.venues.harbor",
    "tau": "harbortrainer.venues.tau.venue",
}  # name -> the module whose VENUE it is


class TaskVenue(Protocol):
    """What a venue does for its tasks. `place`: the path of a Source; other code gives it back unread."""

    @property
    def name(self) -> str: ...

    @property
    def packages(self) -> tuple[str, ...]:
        """Those whose versions shape its trials."""
        ...

    def find(self, given: str) -> tuple[str, str]:
        """Path and version of the source `VENUE:NAME`. Raises UserError."""
        ...

    def names(self, place: str) -> list[str]:
        """Names of all tasks of a source. Raises UserError when the source cannot be read."""
        ...

    def load(self, place: str, excluded: Collection[str]) -> list[Task]:
        """Its tasks without `excluded`; `domain` may be "", then it is the source's name. Raises UserError."""
        ...

    def identify(self, task: Task) -> Identity:
        """The keys by which equal and related tasks are found."""
        ...


def venue(name: str) -> Any:
    """The venue of this name, a `rollout.venue.Venue`. Raises UserError for an unknown one."""
    if name not in MODULES:
        raise UserError(f"tasks_dir: no venue is named {name}; one of {', '.join(MODULES)}")
    return importlib.import_module(MODULES[name]).VENUE


@lru_cache(maxsize=4096)
def identify(task: Task) -> Identity:
    """The identity of a task, by its venue. Its digest stands for its contents: they are read once."""
    found: Identity = venue(task.venue).identify(task)
    return found
