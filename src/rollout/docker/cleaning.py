"""What of ours can go from a daemon: all of dead runs, and images that were not used for long or take too much."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import CONFLICT

from docker.errors import APIError

from src.rollout.docker.belongings import Belonging, belongings
from src.rollout.docker.engine import engine
from src.rollout.docker.image_uses import UNUSED_DAYS, forget_uses, is_in_use, last_use
from src.rollout.docker.owner import PID, RUN
from src.rollout.docker.reaper import is_condemned, reap

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
        if self.thing.kind == "image":
            forget_uses(self.thing.name)
        return ""


def tidy() -> list[str]:
    """Before a run: what dead runs left goes, and images unused for UNUSED_DAYS. A line on what was removed, or none.

    Only images whose use was noted here: those of another machine on the same daemon may be in use there. Blocking.
    Raises docker.errors.DockerException when the daemon does not answer.
    """
    left = reap()
    known = [one for one in candidates(UNUSED_DAYS, None, {}) if one.thing.kind == "image" and last_use(one.thing.name)]
    old = [one for one in known if not one.remove()]
    told = [f"{len(left)} containers, networks, volumes or images of dead runs"] if left else []
    told += [f"{len(old)} task images unused for {UNUSED_DAYS:g} days"] if old else []
    return [f"removed from Docker: {' and '.join(told)}"] if told else []


def candidates(
    older_than_days: float | None, max_gb: float | None, sizes: Mapping[tuple[str, str], int]
) -> list[Candidate]:
    """What can go, in an order in which it can be removed; `sizes` as of `disk_usage`. Blocking.

    Never what a live process owns or a container is made of. Images: those not used for `older_than_days`, and the
    least recently used until the others take at most `max_gb`; None = no limit.
    """
    things = list(belongings())
    busy = {container["ImageID"] for container in engine().containers(all=True)}
    dead = [thing for thing in things if is_condemned(thing)]
    found = [Candidate(thing, _owner(thing), thing.created, _size(thing, sizes)) for thing in dead]
    shared = [thing for thing in things if thing.kind == "image" and PID not in thing.labels]
    free = [thing for thing in shared if thing.id not in busy and not is_in_use(thing.name)]
    excess = sum(_size(thing, sizes) for thing in shared) - max_gb * GB if max_gb is not None else 0.0
    return found + list(_images(free, older_than_days, excess, sizes))


def _images(
    free: Iterable[Belonging], older_than_days: float | None, excess: float, sizes: Mapping[tuple[str, str], int]
) -> Iterator[Candidate]:
    """Least recently used first, until `excess` bytes are freed."""
    now = time.time()
    for used, thing in sorted(((_used(thing), thing) for thing in free), key=lambda pair: pair[0]):
        size, days = _size(thing, sizes), (now - used) / _DAY_SEC
        if thing.name == thing.id and now - thing.created > _BEING_BUILT_SEC:
            why = "has no name any more"
        elif older_than_days is not None and days > older_than_days:
            why = f"not used for {days:.1f} days"
        elif excess > 0:
            why = "least recently used"
        else:
            continue
        excess -= size
        yield Candidate(thing, why, used, size)


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


def _used(thing: Belonging) -> float:
    return max(thing.created, last_use(thing.name))


def _owner(thing: Belonging) -> str:
    return f"run {thing.labels.get(RUN) or '?'} is dead"
