"""Labels on everything that we create on a Docker daemon, and the labelled objects. Others are never looked at."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import CONFLICT
from itertools import groupby
from typing import Any

import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from harbortrainer.docker import UNUSED_DAYS
from harbortrainer.docker.daemon import call_removal, engine
from harbortrainer.durable.process import PID, lives, this_process

LABEL = "harbortrainer"
RUN_ID = "harbortrainer.run_id"
TRIAL = "harbortrainer.trial"
DIGEST = "harbortrainer.digest"
BUILT = "harbortrainer.built"  # an image is shared: these two only tell when it was built, and for which run
BUILT_FOR = "harbortrainer.built-for"


def labels(run_id: str, trial: str = "") -> dict[str, str]:
    """Labels of a container, network or volume of this process."""
    return {LABEL: "1", RUN_ID: run_id, TRIAL: trial} | this_process()


def image_labels(digest: str, run_id: str) -> dict[str, str]:
    """Labels of an image that is built once for all runs."""
    return {LABEL: "1", DIGEST: digest, BUILT: datetime.now(UTC).isoformat(timespec="seconds"), BUILT_FOR: run_id}


def running(run_id: str) -> dict[str, object]:
    """Docker's filter for the running containers that this process started for the run."""
    marks = {LABEL: "1", RUN_ID: run_id} | this_process()
    return {"label": [f"{name}={value}" for name, value in marks.items()], "status": "running"}


def is_left_over(marks: Mapping[str, str], run_id: str | None = None) -> bool:
    """Whether what carries these labels may be removed.

    Its process is dead, or it belongs to the run `run_id` and to no other process that is seen to live.
    """
    if PID not in marks or marks.get(LABEL) != "1":
        return False  # an image that runs share names no process
    alive = lives(marks)
    if alive is False:
        return True
    mine = all(marks.get(name) == value for name, value in this_process().items())
    return run_id is not None and marks.get(RUN_ID) == run_id and (mine or alive is None)


_OURS = {"label": f"{LABEL}=1"}


@dataclass(frozen=True, slots=True)
class OwnedObject:
    """`name`: a container's, network's or volume's; an image's tag, or its ID when it has none."""

    kind: str  # container, network, volume or image
    name: str
    labels: Mapping[str, str]
    created: float = 0.0  # seconds since 1970; 0 = not known
    id: str = ""  # a volume has none

    def remove(self) -> None:
        """Blocking; nothing happens when it is gone. Raises docker.errors.DockerException."""
        with contextlib.suppress(NotFound, ImageNotFound):
            if self.kind == "container":
                remove_container(self.name)
            elif self.kind == "network":
                engine().remove_network(self.id)  # two may have one name
            elif self.kind == "volume":
                engine().remove_volume(self.name)
            else:
                engine().remove_image(self.name)


def owned_objects() -> Iterator[OwnedObject]:
    """All that is ours, in an order in which it can be removed. Blocking. Raises docker.errors.DockerException."""
    for container in engine().containers(all=True, filters=_OURS):
        name = container["Names"][0].lstrip("/") if container["Names"] else container["Id"][:12]
        yield OwnedObject("container", name, container["Labels"], container["Created"], container["Id"])
    for network in engine().networks(filters=_OURS):
        yield OwnedObject("network", network["Name"], network["Labels"], seconds(network["Created"]), network["Id"])
    for volume in engine().volumes(filters=_OURS)["Volumes"] or ():
        yield OwnedObject("volume", volume["Name"], volume["Labels"], seconds(volume.get("CreatedAt", "")))
    for image in engine().images(filters=_OURS):
        for name in [tag for tag in image["RepoTags"] or () if tag != "<none>:<none>"] or [image["Id"]]:
            yield OwnedObject("image", name, image["Labels"], _built(image), image["Id"])


def remove_container(name: str) -> None:
    """Kill and remove a container with its volumes. Returns when it is gone, whoever removed it."""
    with contextlib.suppress(NotFound):
        try:
            engine().remove_container(name, force=True, v=True)
        except APIError as error:
            if error.status_code != CONFLICT:  # its removal is already in progress
                raise
            engine().wait(name, condition="removed")


def _built(image: Mapping[str, Any]) -> float:
    """BuildKit gives an image that comes from its cache the time of the cached one: our label is asked first."""
    return seconds(image["Labels"].get(BUILT, "")) or image["Created"]


def seconds(time: str) -> float:
    """Of Docker's 2026-01-31T10:20:30.123456789+01:00."""
    head, _, tail = time.partition(".")
    zone = tail.lstrip("0123456789") if tail else ""
    try:
        return datetime.fromisoformat(head + zone).timestamp()
    except ValueError:
        return 0.0


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
        condemned = (thing for thing in owned_objects() if is_left_over(thing.labels, run_id))
        for _, things in groupby(condemned, key=lambda thing: thing.kind):  # a kind after the other: they depend
            removed += [name for name in pool.map(_removed, things) if name]
    return removed


def _removed(thing: OwnedObject) -> str:
    try:
        thing.remove()
    except APIError as error:
        _log.warning("%s %s stays: %s", thing.kind, thing.name, error.explanation or error)
        return ""
    return thing.name


_DAY_SEC = 86400.0
_BEING_BUILT_SEC = 3600.0  # an image has no name for a moment
_DF_TRIES = 30
GB = 1000**3  # as Docker counts


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something of ours that can be removed, and why. `size`: bytes that its removal frees; 0 = not known."""

    thing: OwnedObject
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
    things = list(owned_objects())
    busy = {container["ImageID"] for container in engine().containers(all=True)}
    dead = [thing for thing in things if is_left_over(thing.labels)]
    found = [Candidate(thing, _owner(thing), thing.created, _size(thing, sizes)) for thing in dead]
    shared = [thing for thing in things if thing.kind == "image" and PID not in thing.labels and thing.id not in busy]
    return found + sorted(_unused(shared, older_than_days, sizes), key=lambda one: one.used)


def _unused(
    images: Iterable[OwnedObject], older_than_days: float | None, sizes: Mapping[tuple[str, str], int]
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


def _size(thing: OwnedObject, sizes: Mapping[tuple[str, str], int]) -> int:
    return sizes.get((thing.kind, thing.id or thing.name), 0)


def _owner(thing: OwnedObject) -> str:
    return f"run {thing.labels.get(RUN_ID) or '?'} is dead"


MAX_REFUSALS = 5  # of a daemon that answers
FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.2, 5.0
DRAIN_SEC = 5.0  # the reaper comes after it
_pending: set[asyncio.Task[Any]] = set()
_refused: set[asyncio.Task[Any]] = set()  # of those: tried in vain, to be tried again


def in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run clean-up that nobody waits for before `drain`."""
    task = asyncio.get_running_loop().create_task(work)
    _pending.add(task)
    task.add_done_callback(_pending.discard)
    return task


async def remove_after(name: str, creation: asyncio.Future[Any] | None) -> None:
    """Remove container `name` once `creation`, which may still be under way, has ended either way.

    Tried again for as long as the daemon does not answer, until `drain` gives up.
    """
    if creation is not None:
        await asyncio.wait([creation])
        if not creation.cancelled():
            creation.exception()  # its own waiter reports it
    pause, refusals = FIRST_PAUSE_SEC, 0
    while (error := await _try(name)) is not None:
        refusals += isinstance(error, APIError)
        if refusals >= MAX_REFUSALS:
            _log.warning("container %s is left to the reaper: %s", name, error)
            return
        await _sleep_refused(name, pause)
        pause = min(2 * pause, LONGEST_PAUSE_SEC)


async def drain(patience_sec: float = DRAIN_SEC) -> None:
    """Wait for every removal that is under way; those that the daemon does not answer are given up after a while.

    Await it once, at the end of the run.
    """
    loop = asyncio.get_running_loop()
    give_up = time.monotonic() + patience_sec
    while mine := [task for task in _pending if task.get_loop() is loop]:
        late = time.monotonic() >= give_up
        for task in mine:
            if late and task in _refused:
                task.cancel()
        await asyncio.wait(mine, timeout=1.0 if late else give_up - time.monotonic())


async def _try(name: str) -> Exception | None:
    try:
        await call_removal(remove_container, name)
    except (DockerException, requests.RequestException) as error:
        return error
    return None


async def _sleep_refused(name: str, seconds: float) -> None:
    task = asyncio.current_task()
    assert task is not None
    _refused.add(task)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        _log.warning("container %s is left to the reaper: Docker does not answer", name)
        raise
    finally:
        _refused.discard(task)
