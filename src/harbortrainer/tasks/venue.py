"""Venues by name: where trials take place. A venue's module is imported when a task source needs it."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

from harbortrainer.errors import UserError
from harbortrainer.plugins import plugin
from harbortrainer.tasks.identity import SAME_NAME, Identity, digest_of
from harbortrainer.tasks.task import Task


def venue(name: str) -> Any:
    """Return the venue of this name, a `rollout.venue.Venue`. Raises UserError for an unknown one, or no venue."""
    found = plugin("venues", "tasks_dir", name).value
    if isinstance(found, type) or not hasattr(found, "room"):
        raise UserError(f"tasks_dir={name}: of {type(found)}; name an object with the methods of harbortrainer.Venue")
    return found


def wrong_answer(given: str, method: str, answer: object, wanted: str) -> UserError:
    """Return the error for what a method of a venue returned. `given`: the venue, or its source."""
    return UserError(f"tasks_dir={given}: {method}() of its venue returned {answer!r}; return {wanted}")


@lru_cache(maxsize=4096)
def identify(task: Task) -> Identity:
    """Return the identity of a task, by its venue. Its digest stands for its contents: they are read once."""
    found = venue(task.venue).identify(task)
    if not isinstance(found, Identity):
        raise wrong_answer(task.venue, "identify", found, "an Identity")
    named = [(SAME_NAME, digest_of((task.family,)))] if task.family else []
    return replace(found, keys=(*found.keys, *named))
