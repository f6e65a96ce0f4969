"""What can be removed from a daemon: all of dead runs, and task images that were not used for long."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import CONFLICT

from docker.errors import APIError, ImageNotFound

from src.process import PID
from src.rollout.docker.belongings import Belonging, belongings, seconds
from src.rollout.docker.engine import engine
from src.rollout.docker.owner import RUN_ID, is_left_over
from src.rollout.docker.reaper import reap

UNUSED_DAYS = 30.0
_DAY_SEC = 86400.0
_BEING_BUILT_SEC = 3600.0  # an image has no name for a moment
_DF_TRIES = 30
GB = 1000**3  # as Docker counts


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something of ours that can be removed, and why. `size`: bytes that its removal frees; 0 = not known."""

    thing: Belonging
    why: str
    used: float  # seconds since 1970; creation where no use is known
    size: int = 0

    def remove(self) -> str:
        """Why it cannot be removed; "" = it is gone. Raises docker.errors.DockerException without a daemon."""
        try:
            self.thing.remove()
        except APIError as error:
            return str(error.explanation or error)
        return ""


def tidy(run_id: str | None = None) -> list[str]:
    """Before a run: remove what dead runs and earlier processes of this run left, and images unused for UNUSED_DAYS.

    Returns a line on what was removed, or none.

    Blocking. Raises docker.errors.DockerException when the daemon does not answer.
    """
    left = reap(run_id)
    old = [one for one in candidates(UNUSED_DAYS, {}) if one.thing.kind == "image" and not one.remove()]
    parts = [f"{len(left)} containers, networks, volumes or images of dead runs"] if left else []
    parts += [f"{len(old)} task images unused for {UNUSED_DAYS:g} days"] if old else []
    return [f"removed from Docker: {' and '.join(parts)}"] if parts else []


def candidates(older_than_days: float | None, sizes: Mapping[tuple[str, str], int]) -> list[Candidate]:
    """What can go, in an order in which it can be removed; `sizes` as of `disk_usage`. Blocking.

    Never what a live process owns or a container is made of. Images: those not used for `older_than_days`; None = none.
    """
    things = list(belongings())
    busy = {container["ImageID"] for container in engine().containers(all=True)}
    dead = [thing for thing in things if is_left_over(thing.labels)]
    found = [Candidate(thing, _owner(thing), thing.created, _size(thing, sizes)) for thing in dead]
    shared = [thing for thing in things if thing.kind == "image" and PID not in thing.labels and thing.id not in busy]
    return found + sorted(_unused(shared, older_than_days, sizes), key=lambda one: one.used)


def _unused(
    images: Iterable[Belonging], older_than_days: float | None, sizes: Mapping[tuple[str, str], int]
) -> Iterator[Candidate]:
    now = time.time()
    for thing in images:
        used = max(thing.created, _last_tagged(thing.id))
        days = (now - used) / _DAY_SEC
        if thing.name == thing.id and now - thing.created > _BEING_BUILT_SEC:
            why = "has no name any more"
        elif older_than_days is not None and days > older_than_days:
            why = f"not used for {days:.1f} days"
        else:
            continue
        yield Candidate(thing, why, used, _size(thing, sizes))


def _last_tagged(image: str) -> float:
    """Seconds since 1970: a process that uses an image tags it anew every hour (`images`)."""
    try:
        return seconds(engine().inspect_image(image)["Metadata"]["LastTagTime"])
    except ImageNotFound:  # removed since it was listed
        return 0.0


def disk_usage() -> dict[tuple[str, str], int]:
    """Bytes by (kind, ID; a volume's name): of an image what it shares with no other. Blocking, may take seconds.

    Raises docker.errors.DockerException.
    """
    for _ in range(_DF_TRIES):
        try:
            usage = engine().df()
            break
        except APIError as error:
            if error.status_code != CONFLICT and "already running" not in str(error):
                raise
            time.sleep(1)  # the daemon counts for one at a time
    else:
        usage = engine().df()
    sizes = {("image", image["Id"]): max(0, image["Size"] - image["SharedSize"]) for image in usage["Images"] or ()}
    sizes |= {("container", one["Id"]): one.get("SizeRw", 0) for one in usage["Containers"] or ()}
    return sizes | {
        ("volume", one["Name"]): (one.get("UsageData") or {}).get("Size", 0) for one in usage["Volumes"] or ()
    }


def _size(thing: Belonging, sizes: Mapping[tuple[str, str], int]) -> int:
    return sizes.get((thing.kind, thing.id or thing.name), 0)


def _owner(thing: Belonging) -> str:
    return f"run {thing.labels.get(RUN_ID) or '?'} is dead"
