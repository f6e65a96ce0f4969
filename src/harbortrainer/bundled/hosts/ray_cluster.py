"""Hosts on a Ray cluster: finds its nodes, starts an actor on each and ends it. The only module that imports ray."""

import asyncio
import contextlib
import importlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import chz

from harbortrainer.backend.connect import server_url
from harbortrainer.bundled.hosts.facts import refuse_different
from harbortrainer.bundled.hosts.messages import Job, MachineFacts, pack_folder
from harbortrainer.bundled.hosts.node import FIRST_POLL_SEC, Node
from harbortrainer.bundled.hosts.remote import HostLost, RemoteHost
from harbortrainer.docker.integrity.allowed import ALLOWED_FILE
from harbortrainer.errors import UserError
from harbortrainer.rollout.fleet import Fleet
from harbortrainer.rollout.gates import n_containers
from harbortrainer.rollout.venue import RunParts, Say
from harbortrainer.tasks.folders import folder_of
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor.venue import HarborVenue

RESOURCE = "trials"  # what a node must offer; its value is the number of its places
NAMESPACE = "harbortrainer"
LOOK_SEC = 5.0  # between two looks for new nodes
SLOW_SEC = 15.0  # for an answer of the head, which Ray waits for a minute for
STOP_SEC = 60.0  # for actors of an earlier process of the run to clean up
CHUNK = 16 * 1024**2  # bytes of images at once
INSTALL = "hosts=ray: ray is not installed; run scripts/setup.sh --ray here and on each host"
START = "start a node on each machine: scripts/start_host.sh HEAD_ADDRESS (docs/hosts.md)"
log = logging.getLogger("harbortrainer")


def _ray(name: str = "") -> Any:
    return importlib.import_module(f"ray.{name}" if name else "ray")


def check_ray() -> None:
    """Raise UserError unless ray is installed and has a token: without one anybody who reaches a port runs code."""
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _ray()
    except ImportError:
        raise UserError(INSTALL) from None
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if not os.environ.get("RAY_AUTH_TOKEN") and not path.is_file():
        raise UserError(
            f"hosts=ray: no token in {path}; scripts/start_host.sh --head makes one, which every host needs "
            "(RAY_AUTH_TOKEN_PATH)"
        )


class ClusterAway(UserError):
    """The cluster does not answer; it may do so later."""


class RayLink:
    """Calls the methods of an actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def call(self, method: str, *args: Any) -> Any:
        faults = _ray("exceptions")
        try:
            return await getattr(self._actor, method).remote(*args)
        except faults.RayTaskError as error:  # which is a RayError too
            raise error.cause or error from None
        except faults.RayError as error:
            raise HostLost(type(error).__name__) from None

    def kill(self) -> None:
        with contextlib.suppress(_ray("exceptions").RayError):
            _ray().kill(self._actor)


@dataclass(frozen=True, slots=True)
class RayHosts:
    """Hosts of a Ray cluster, as `rollout.fleet.Hosts` asks for them."""

    check = staticmethod(check_ray)

    def cluster(self, run: RunParts, venue: HarborVenue) -> "RayCluster":
        """Return the cluster for one run, whose hosts run trials as on one machine of their own."""
        config = chz.replace(run.config, hosts="none")
        there = HarborVenue(new_trial=venue.new_trial)
        places, powers = n_containers(config), run.sampler.powers_of_two
        server = server_url(config) if config.backend == "skyrl-tx" else ""
        job = Job(
            config,
            run.run_id,
            there,
            venue.load_template,
            places=places,
            powers_of_two=powers,
            silence_sec=venue.silence_sec,
            server=server,
        )
        return RayCluster(job, run)


HOSTS = RayHosts()


class RayCluster:
    """The nodes of a cluster that offer `trials`. `job`: the run, with the most places that one host gets."""

    def __init__(self, job: Job, run: RunParts) -> None:
        self._job, self._run = job, run
        self._packed: dict[str, tuple[Task, bytes]] = {}
        self._hosts: dict[str, RemoteHost] = {}  # by node ID
        self._images = asyncio.Lock()  # one host builds, and is read by one other at a time
        self._refused: set[str] = set()

    @contextlib.asynccontextmanager
    async def joined(self, fleet: Fleet, tasks: Sequence[Task], say: Say) -> AsyncIterator[None]:
        """Yield the hosts are in the fleet within the block, those that come later too. Raises UserError."""
        await asyncio.to_thread(_connect)
        try:
            await _end_earlier(self._job.run_id)
            for task in tasks:
                packed = await asyncio.to_thread(pack_folder, folder_of(task), ALLOWED_FILE)
                self._packed[task.digest] = task, packed
            joins = [self._join(fleet, node, say) for node in await asyncio.to_thread(_nodes)]
            for error in await asyncio.gather(*joins, return_exceptions=True):
                if error is not None and not isinstance(error, HostLost):  # which was logged
                    raise error
            if not self._hosts:
                raise UserError(f"hosts=ray: no node of the cluster offers {RESOURCE}; {START}")
            looking = asyncio.create_task(self._look(fleet, say), name="look for hosts")
            try:
                yield
            finally:
                looking.cancel()
                await asyncio.wait({looking})
        finally:
            await asyncio.gather(*(host.close() for host in self._hosts.values()))
            await asyncio.to_thread(_ray().shutdown)

    async def _look(self, fleet: Fleet, say: Say) -> None:
        """Let nodes join that come later. One that does not fit is named once and left out; an outage, too."""
        away = False
        while True:
            await asyncio.sleep(LOOK_SEC)
            try:
                for node in await _told_if_slow(asyncio.to_thread(_nodes)):
                    if node["NodeID"] not in self._hosts and node["NodeID"] not in self._refused:
                        await self._join_later(fleet, node, say)
                away = False
            except ClusterAway as error:  # the next look tries again
                if not away:
                    log.warning("%s", error)
                away = True

    async def _join_later(self, fleet: Fleet, node: dict[str, Any], say: Say) -> None:
        """Raises ClusterAway."""
        try:
            await self._join(fleet, node, say)
        except ClusterAway:
            raise
        except UserError as error:
            self._refused.add(node["NodeID"])
            log.warning("%s", error)
        except HostLost:  # it was logged; the next look tries again
            return

    async def _join(self, fleet: Fleet, node: dict[str, Any], say: Say) -> None:
        """Start an actor on a node, and let it join when it fits. Raises UserError, ClusterAway, HostLost."""
        began, node_id, name = time.monotonic(), node["NodeID"], node["NodeManagerAddress"]
        places = min(self._job.places, int(node["Resources"][RESOURCE]))
        job = replace(self._job, places=places)
        link = RayLink(await asyncio.to_thread(_start_actor, job, node_id, f"{job.run_id}/{name}/{time.time():.3f}"))

        def left(host: RemoteHost) -> None:
            self._hosts.pop(node_id, None)
            fleet.leave(host, host.quiet_at)

        self._hosts[node_id] = host = RemoteHost(name, link, places, self._run, job.silence_sec, left)
        try:
            found = await host.start()
            refuse_different(name, found, [(one.name, one.facts) for one in self._hosts.values() if one.facts])
            host.facts = found
            await self._equip(host, say)
        except (UserError, HostLost):  # perhaps of the host from which it gets images
            await host.close()
            self._hosts.pop(node_id, None)
            raise
        fleet.join(host)
        say(f"host {name}: {places} places, Docker {found.docker}, ready in {time.monotonic() - began:.0f} s")

    async def _equip(self, host: RemoteHost, say: Say) -> None:
        """Give a host the run's tasks and their images. Raises UserError, HostLost."""
        await host.ask("reach")
        for task, packed in self._packed.values():
            await host.ask("add", task, packed)
        async with self._images:
            if (first := next((one for one in self._hosts.values() if one.has_images), None)) is None:
                await self._prepare(host, say)
                host.has_images = True
                return
            await self._give_images(host, first)
        await self._prepare(host, say)
        await self._compare_images(host, first)
        host.has_images = True

    async def _prepare(self, host: RemoteHost, say: Say) -> None:
        for line in await host.ask("prepare"):
            say(f"host {host.name}: {line}")

    async def _give_images(self, host: RemoteHost, first: RemoteHost) -> None:
        """Copy the images that an earlier host has built: built twice, they may differ."""
        built, here = await first.ask("images"), await host.ask("images")
        if not (missing := [name for name, image in built.items() if image and not here.get(name)]):
            return
        size = await first.ask("save_images", missing)
        for offset in range(0, size, CHUNK):
            await host.ask("write", await first.ask("read", offset, CHUNK))
        await host.ask("load_images")

    async def _compare_images(self, host: RemoteHost, first: RemoteHost) -> None:
        theirs, here = await first.ask("images"), await host.ask("images")
        if any(here.get(name) != image for name, image in theirs.items()):
            different = [name for name, image in here.items() if image != theirs.get(name)]
            raise UserError(
                f"host {host.name}: has other images than host {first.name}: {', '.join(different)}; rewards would "
                f"depend on the machine; remove them there: docker rmi {' '.join(different)}"
            )


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A node. `problem`: why it cannot run trials of this machine's runs, "" = it can."""

    name: str
    places: int
    facts: MachineFacts | None
    round_trip_sec: float
    problem: str


async def survey(job: Job) -> list[Surveyed]:
    """Look at every node that offers places, without a trial. Raises UserError without a cluster."""
    await asyncio.to_thread(_connect)
    try:
        found: list[Surveyed] = []
        for node in await asyncio.to_thread(_nodes):
            found.append(await _surveyed(job, node, found))
        return found
    finally:
        await asyncio.to_thread(_ray().shutdown)


async def _surveyed(job: Job, node: dict[str, Any], others: Sequence[Surveyed]) -> Surveyed:
    name, places = node["NodeManagerAddress"], int(node["Resources"][RESOURCE])
    facts, seconds, problem = None, 0.0, ""
    link = RayLink(await asyncio.to_thread(_start_actor, job, node["NodeID"], f"{job.run_id}/{name}"))
    try:
        async with asyncio.timeout(FIRST_POLL_SEC):
            facts = await link.call("start")
            began = time.monotonic()
            await link.call("poll", began)
            seconds = time.monotonic() - began
            refuse_different(name, facts, [(one.name, one.facts) for one in others if one.facts is not None])
            await link.call("reach")
            await link.call("stop")
    except (UserError, HostLost, TimeoutError) as error:
        problem = str(error) or "no answer"
    link.kill()
    return Surveyed(name, places, facts, seconds, problem)


def _connect() -> None:
    check_ray()
    try:
        _ray().init(address="auto", namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError) as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise UserError(
            f"hosts=ray: no cluster ({reason}); start its head here: scripts/start_host.sh --head"
        ) from None


async def _told_if_slow[T](asked: Awaitable[T]) -> T:
    """The cluster's answer. Warns while it stays away, since Ray ends this process without a word of ours then."""
    loop = asyncio.get_running_loop()
    warning = loop.call_later(
        SLOW_SEC,
        log.warning,
        "hosts=ray: the cluster's head has not answered for %.0f s; where it stays away, Ray ends this process after a "
        "minute: start the head and the hosts again, and continue with resume=RUN_DIR",
        SLOW_SEC,
    )
    try:
        return await asked
    finally:
        warning.cancel()


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Raises ClusterAway for an error of Ray's within the block."""
    try:
        yield
    except (RuntimeError, OSError, _ray("exceptions").RayError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ClusterAway(f"hosts=ray: the cluster does not answer ({reason}); see whether its head runs") from None


def _nodes() -> list[dict[str, Any]]:
    """The nodes that offer places. Raises ClusterAway."""
    with _answering():
        return [node for node in _ray().nodes() if node["Alive"] and node["Resources"].get(RESOURCE)]


def _start_actor(job: Job, node_id: str, name: str) -> Any:
    """It outlives this process, to clean up; nothing restarts it, and no call of it is tried twice.

    Raises ClusterAway.
    """
    here = _ray("util.scheduling_strategies").NodeAffinitySchedulingStrategy(node_id, soft=False)
    actor = _ray().remote(num_cpus=0, max_restarts=0, max_task_retries=0, max_concurrency=4096)(Node)
    own = {"name": name, "lifetime": "detached", "resources": {RESOURCE: job.places}, "scheduling_strategy": here}
    with _answering():
        return actor.options(**own).remote(job)


async def _end_earlier(run_id: str) -> None:
    """End the actors of an earlier process of this run; one that cannot be reached ends by its lease."""
    for one in await asyncio.to_thread(_ray("util").list_named_actors, True):
        if one["namespace"] != NAMESPACE or not one["name"].startswith(f"{run_id}/"):
            continue
        try:
            link = RayLink(await asyncio.to_thread(_ray().get_actor, one["name"], NAMESPACE))
        except ValueError:  # it is gone
            continue
        try:
            async with asyncio.timeout(STOP_SEC):
                await link.call("stop")
        except HostLost:
            continue
        except TimeoutError:
            log.warning("an earlier process's host %s does not answer; it ends by itself", one["name"])
        link.kill()
