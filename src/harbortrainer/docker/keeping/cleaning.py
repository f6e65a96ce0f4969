"""Lists everything on a Docker daemon that carries the labels of runs, and removes it.

Containers, networks and volumes go with their run or their process; images and the network of trials, which runs
share, when they are not used any more. Objects without the labels are never touched.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from http.client import CONFLICT
from itertools import groupby
from typing import Any

import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_fixed

from harbortrainer.docker import UNUSED_DAYS
from harbortrainer.docker.box.first_process import end_all
from harbortrainer.docker.daemon import REQUEST_TIMEOUT_SEC, answered, call_removal, engine, remove_container
from harbortrainer.docker.images.builds import REPOSITORY
from harbortrainer.docker.integrity import privileged
from harbortrainer.docker.keeping.ownership import BUILT, LABEL, NETWORK, RUN_ID, is_left_over
from harbortrainer.docker.keeping.removals import removals
from harbortrainer.durable.process import PID
from harbortrainer.stopping import daemon_future
from harbortrainer.text import counted

GB = 1000**3  # as Docker counts
MAX_REFUSALS = 5  # of one removal, by a daemon that answers
FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.2, 5.0  # before a removal is tried again
DRAIN_SEC = 5.0
END_SEC = 10.0  # for the processes of containers to be killed by a program that is root
LATE = f"Docker has not removed it in {REQUEST_TIMEOUT_SEC} s"
_LABELLED = {"label": f"{LABEL}=1"}
_N_REAPERS = 4
_DAY_SEC = 86400.0
_BEING_BUILT_SEC = 3600.0  # an image has no name while it is built
_DF_TRIES = 30
_log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class OwnedObject:
    """A labelled object. `name`: a container's, network's or volume's; an image's tag, or its ID when it has none."""

    kind: str  # container, network, volume or image
    name: str
    labels: Mapping[str, str]
    created: float = 0.0  # seconds since 1970; 0 = not known
    id: str = ""  # a volume has none

    def remove(self) -> str:
        """Return why Docker refuses to remove it; "" = it is gone. Blocking. Raises docker.errors.DockerException."""
        try:
            if self.kind == "container":
                remove_container(self.name)
            elif self.kind == "network":
                engine().remove_network(self.id)  # two may have one name
            elif self.kind == "volume":
                engine().remove_volume(self.name)
            else:
                engine().remove_image(self.name)
        except NotFound:
            return ""
        except APIError as error:
            return str(error.explanation or error)
        except requests.ReadTimeout:  # others can be removed
            return LATE
        return ""


def owned_objects() -> Iterator[OwnedObject]:
    """Yield labelled objects, in an order in which they can be removed. Blocking.

    Raises docker.errors.DockerException.
    """
    for container in engine().containers(all=True, filters=_LABELLED):
        name = container["Names"][0].lstrip("/") if container["Names"] else container["Id"][:12]
        yield OwnedObject("container", name, container["Labels"], container["Created"], container["Id"])
    for network in engine().networks(filters=_LABELLED):
        yield OwnedObject("network", network["Name"], network["Labels"], _seconds(network["Created"]), network["Id"])
    for volume in engine().volumes(filters=_LABELLED)["Volumes"] or ():
        yield OwnedObject("volume", volume["Name"], volume["Labels"], _seconds(volume.get("CreatedAt", "")))
    named = engine().images(name=REPOSITORY)  # what a failed build leaves has no label
    for image in {one["Id"]: one for one in (*engine().images(filters=_LABELLED), *named)}.values():
        # BuildKit gives an image from its cache the creation time of the cached one: the label is more exact.
        created = _seconds((image["Labels"] or {}).get(BUILT, "")) or image["Created"]
        for name in [tag for tag in image["RepoTags"] or () if tag != "<none>:<none>"] or [image["Id"]]:
            yield OwnedObject("image", name, image["Labels"] or {}, created, image["Id"])


def end_processes(things: Iterable[OwnedObject]) -> None:
    """Kill the processes of the containers among `things`, if root can here: Docker removes them without that, too.

    Beside a trainer that is not root, a program started for it does it. Blocking.
    """
    ids = [one.id for one in things if one.kind == "container"]
    if os.geteuid() == 0:
        for container in ids:
            end_all(container)
    elif ids:
        with contextlib.suppress(OSError, DockerException, TimeoutError):
            program = privileged.start(end_all.__module__, run_id="")
            with contextlib.closing(program):
                daemon_future(lambda: _end(program, ids)).result(END_SEC)


def _end(program: privileged.RootProgram, containers: Iterable[str]) -> None:
    answers = program.chunks()
    for one in containers:
        program.send(f"{one}\n".encode())
        next(answers, b"")


def _seconds(time: str) -> float:
    """Seconds since 1970 of Docker's 2026-01-31T10:20:30.123456789+01:00; 0 = not a time."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0


def reap(run_id: str | None = None) -> list[str]:
    """Remove the objects of dead processes, and those of the run `run_id` unless another live process owns them.

    Shared images stay; images that Harbor's compose environment builds for one trial go. Safe to repeat. Objects that
    Docker refuses to remove are logged; after _N_REAPERS removals that it left unanswered it is asked for no other.
    Blocking. Returns the names of what was removed. Raises docker.errors.DockerException when the daemon does not
    answer.
    """
    removed, late = list[str](), list[str]()

    def remove(thing: OwnedObject) -> str:
        if len(late) >= _N_REAPERS:
            return "Docker does not answer"
        refusal = thing.remove()
        late.extend([thing.name] if refusal == LATE else [])
        return refusal

    condemned = [thing for thing in owned_objects() if is_left_over(thing.labels, run_id)]
    end_processes(condemned)
    with ThreadPoolExecutor(_N_REAPERS, thread_name_prefix="docker-reap") as pool:
        for kind, group in groupby(condemned, key=lambda thing: thing.kind):  # containers first: others depend on them
            things = list(group)
            for thing, refusal in zip(things, pool.map(remove, things), strict=True):
                if refusal:
                    _log.warning("%s %s cannot be removed: %s", kind, thing.name, refusal)
                else:
                    removed.append(thing.name)
    return removed


@answered()
def tidy(run_id: str | None = None) -> list[str]:
    """Remove before a run what dead runs and its earlier processes left, and images unused for UNUSED_DAYS or nameless.

    Returns at most one line, on what was removed. Blocking. Raises EnvironmentFault when the daemon does not answer.
    """
    left = reap(run_id)
    old = [one for one in candidates(UNUSED_DAYS) if one.thing.kind == "image" and not one.thing.remove()]
    parts = [f"{len(left)} containers, networks, volumes or images of dead runs"] if left else []
    images = f"{counted(len(old), 'task images')} without a name or not used for {UNUSED_DAYS:g} days"
    parts += [images] if old else []
    return [f"removed from Docker: {' and '.join(parts)}"] if parts else []


@dataclass(frozen=True, slots=True)
class Candidate:
    """An object that can be removed, and why."""

    thing: OwnedObject
    why: str
    used: float  # seconds since 1970; creation where no use is known


def candidates(older_than_days: float | None) -> list[Candidate]:
    """Return everything that can be removed, in an order in which it can be. Blocking.

    Objects of live processes and images of existing containers are left out. Images with a name are listed when they
    were not used for `older_than_days`; None = never.
    """
    things = list(owned_objects())
    busy = {container["ImageID"] for container in engine().containers(all=True)}
    dead = [
        Candidate(one, f"run {one.labels.get(RUN_ID) or '?'} is dead", one.created)
        for one in things
        if is_left_over(one.labels)
    ]
    shared = [thing for thing in things if thing.kind == "image" and PID not in thing.labels and thing.id not in busy]
    networks = [one for one in things if NETWORK in one.labels and _is_empty(one.id)]
    empty = [Candidate(one, "no container uses it", one.created) for one in networks]
    return [*dead, *empty, *sorted(_unused(shared, older_than_days), key=lambda one: one.used)]


def _is_empty(network: str) -> bool:
    try:
        return not engine().inspect_network(network)["Containers"]
    except NotFound:  # removed since it was listed
        return False


def _unused(images: Iterable[OwnedObject], older_than_days: float | None) -> Iterator[Candidate]:
    now = time.time()
    for image in images:
        used = max(image.created, _last_tagged(image.id))
        days = (now - used) / _DAY_SEC
        if image.name == image.id and now - image.created > _BEING_BUILT_SEC:
            yield Candidate(image, "has no name any more", used)
        elif older_than_days is not None and days > older_than_days:
            yield Candidate(image, f"not used for {days:.1f} days", used)


def _last_tagged(image: str) -> float:
    """Seconds since 1970: a process that uses an image tags it again every hour (images.py)."""
    try:
        return _seconds(engine().inspect_image(image)["Metadata"]["LastTagTime"])
    except ImageNotFound:  # removed since it was listed
        return 0.0


def disk_usage() -> dict[tuple[str, str], int]:
    """Get bytes by (kind, ID; a volume's name); of an image, what it shares with no other. Blocking, may take seconds.

    Raises docker.errors.DockerException.
    """
    usage = _df()
    sizes = {("image", image["Id"]): max(0, image["Size"] - image["SharedSize"]) for image in usage["Images"] or ()}
    sizes |= {("container", one["Id"]): one.get("SizeRw", 0) for one in usage["Containers"] or ()}
    return sizes | {
        ("volume", one["Name"]): (one.get("UsageData") or {}).get("Size", 0) for one in usage["Volumes"] or ()
    }


def _measures(error: BaseException) -> bool:
    """Whether the daemon measures for another client, and for one at a time."""
    return isinstance(error, APIError) and (error.status_code == CONFLICT or "already running" in str(error))


@retry(retry=retry_if_exception(_measures), wait=wait_fixed(1), stop=stop_after_attempt(_DF_TRIES), reraise=True)
def _df() -> dict[str, Any]:
    return engine().df()


_pending: set[asyncio.Task[Any]] = set()


def in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start clean-up that only `drain` waits for."""
    task = asyncio.get_running_loop().create_task(work)
    _pending.add(task)
    task.add_done_callback(_pending.discard)
    return task


async def remove_after(
    name: str, creation: asyncio.Future[Any] | None, gone: Callable[[], object] | None = None, *, first: bool = False
) -> bool:
    """Remove container `name` after `creation`, if that is still in progress, has ended or failed; then call `gone`.

    Removals give way to starts; `first`: this one comes before the others that wait. A daemon that does not answer is
    asked again until `drain` gives up. Returns whether the container is gone.
    """
    if creation is not None:
        await asyncio.wait([creation])
        if not creation.cancelled():
            creation.exception()  # marks it as seen: the caller that waits for the container reports it
    pause, refusals = FIRST_PAUSE_SEC, 0
    while True:
        try:
            async with removals().turn(first=first):
                await call_removal(remove_container, name)
                if gone:
                    await call_removal(gone)
        except (DockerException, requests.RequestException) as error:
            refusals += isinstance(error, APIError)
            if refusals >= MAX_REFUSALS:
                _log.warning("container %s is left to the reaper: %s", name, error)
                return False
        else:
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(removals().given_up.wait(), pause)
            _log.warning("container %s is left to the reaper: Docker does not answer", name)
            return False
        pause = min(2 * pause, LONGEST_PAUSE_SEC)


async def drain(patience_sec: float = DRAIN_SEC) -> None:
    """Wait for all removals in progress; after `patience_sec`, say so, and give up what the daemon does not answer.

    Call it once, at the end of a run; the reaper comes after it.
    """
    loop, given_up = asyncio.get_running_loop(), removals().given_up

    def be_late() -> None:
        given_up.set()
        _log.warning("the trials are over; Docker has yet to remove %s", counted(len(_pending), "containers"))

    timer = loop.call_later(patience_sec, be_late)
    try:
        while mine := [task for task in _pending if task.get_loop() is loop]:
            await asyncio.wait(mine)
    finally:
        timer.cancel()
        given_up.clear()
