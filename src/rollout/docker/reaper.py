"""Removal of what dead runs left behind. Only things with our label are ever looked at."""

import logging
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

from docker.errors import APIError

from src.rollout.docker.belongings import Belonging, belongings
from src.rollout.docker.owner import is_left_over

_PARALLEL = 4
_log = logging.getLogger("harbortrainer")


def reap(run_id: str | None = None) -> list[str]:
    """Remove what belongs to dead processes, and what belongs to the run `run_id` unless another process lives by it.

    Images are shared between runs and stay, but for those that Harbor's compose environment builds for one trial.
    Blocking, safe to repeat. Returns the names removed; what the daemon does not
    let go is told in the log. Raises docker.errors.DockerException when it does not answer.
    """
    removed: list[str] = []
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="docker-reap") as pool:
        condemned = (thing for thing in belongings() if is_left_over(thing.labels, run_id))
        for _, things in groupby(condemned, key=lambda thing: thing.kind):  # a kind after the other: they depend
            removed += [name for name in pool.map(_removed, things) if name]
    return removed


def _removed(thing: Belonging) -> str:
    try:
        thing.remove()
    except APIError as error:
        _log.warning("%s %s stays: %s", thing.kind, thing.name, error.explanation or error)
        return ""
    return thing.name
