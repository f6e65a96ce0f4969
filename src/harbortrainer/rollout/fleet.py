"""The hosts of a run's trials, and which of them runs the next one."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Protocol

from harbortrainer.errors import EnvironmentFault
from harbortrainer.policy.sampler import Follower, SamplingClient
from harbortrainer.rollout import venue
from harbortrainer.rollout.gates import UNOBSERVED, TrialObserver
from harbortrainer.rollout.slots import Slots
from harbortrainer.tasks.task import Task

log = logging.getLogger("harbortrainer")


class FleetHost(venue.Host, Protocol):
    """A machine that runs trials. `places`: the most of them at once; `totals`: of a sampler of its own."""

    totals: Mapping[str, float] = MappingProxyType({})

    @property
    def places(self) -> int: ...

    def publish(self, client: SamplingClient, version: int) -> None:
        """Let trials that start from now on sample these weights."""

    async def drain(self) -> None:
        """Return when no request of its own sampler is in flight, or the host is lost."""

    async def abandon(self) -> None:
        """Cancel all requests of its own sampler."""

    async def close(self) -> None:
        """Wait for what the trials leave behind. Safe to repeat."""


class Hosts(Protocol):
    """A kind of hosts, as `hosts=NAME` names it."""

    def check(self) -> None:
        """Check, before anything is spent, what this machine needs. Raises UserError."""
        ...

    def cluster(self, run: venue.RunParts, place: venue.Venue) -> "Cluster":
        """Return the hosts of one run. `place`: the venue of its trials, which each host has too."""
        ...


class Cluster(Protocol):
    """The source of a run's hosts when they are other machines."""

    def joined(self, fleet: "Fleet", tasks: Sequence[Task], say: venue.Say) -> AbstractAsyncContextManager[object]:
        """Return hosts that can run these tasks are in the fleet within the block, new ones too. Raises UserError."""
        ...


class Fleet(Follower):
    """Gives each trial the host with the largest share of free places, and each host the published weights.

    `gate` is what trials hold; it has as many slots as the hosts have places, and gives them in the order of asking.
    A host that is lost may sample until its lease ends: `drain` waits for that too.
    """

    def __init__(self, gate: Slots, limit_sec: float, observer: TrialObserver = UNOBSERVED) -> None:
        """`limit_sec`: longest time without any host that is waited for; `observer`: of the trials on each host."""
        self._gate, self._limit_sec, self._observer = gate, limit_sec, observer
        self._trials: dict[FleetHost, int] = {}  # that each host runs
        self._n_left = 0  # hosts
        self._past_totals: Counter[str] = Counter()
        self._published: tuple[SamplingClient, int] | None = None
        self._quiet_at = 0.0  # the event loop's time at which no lost host samples any more
        self._some = asyncio.Event()

    @property
    def hosts(self) -> list[FleetHost]:
        return list(self._trials)

    def join(self, host: FleetHost) -> None:
        """Give trials to this host from now on."""
        if self._published is not None:
            host.publish(*self._published)
        self._trials[host] = 0
        self._some.set()
        self._resize()

    def leave(self, host: FleetHost, quiet_at: float = 0.0) -> None:
        """Give this host no trial any more; those that it runs are its own to end. Safe to repeat.

        `quiet_at`: the event loop's time from which on it samples nothing.
        """
        self._quiet_at = max(self._quiet_at, quiet_at)
        if host in self._trials:
            del self._trials[host]
            self._past_totals.update(host.totals)
            self._n_left += 1
            self._resize()
        if not self._trials:
            self._some.clear()

    @contextlib.asynccontextmanager
    async def host(self) -> AsyncIterator[FleetHost]:
        """Yield host of one trial that has passed the gate. Raises EnvironmentFault when there is none for too long."""
        host = await self._choose()
        self._count(host, 1)
        try:
            yield host
        finally:
            if host in self._trials:
                self._count(host, -1)

    @property
    def metrics(self) -> dict[str, float]:
        """Hosts and their places now, and hosts lost so far."""
        places = sum(host.places for host in self._trials)
        return {
            "hosts/joined": float(len(self._trials)),
            "hosts/places": float(places),
            "hosts/lost": self._n_left * 1.0,
        }

    @property
    def totals(self) -> dict[str, float]:
        """Of the hosts' own samplers, lost ones included."""
        sums: Counter[str] = Counter(self._past_totals)
        for host in self._trials:
            sums.update(host.totals)
        return dict(sums)

    def published(self, client: SamplingClient, version: int) -> None:
        """Let trials that start from now on sample these weights, on every host."""
        self._published = client, version
        for host in self._trials:
            host.publish(client, version)

    async def drain(self) -> None:
        """Return when no host samples: the living ones have answered, and the leases of the lost ones are over."""
        await asyncio.gather(*(host.drain() for host in self._trials))
        loop = asyncio.get_running_loop()
        while (left := self._quiet_at - loop.time()) > 0:
            log.info("waiting %.0f s for the lease of a lost host to end", left)
            await asyncio.sleep(left)

    async def abandon(self) -> None:
        """Cancel all requests on the living hosts."""
        await asyncio.gather(*(host.abandon() for host in self._trials))

    async def close(self) -> None:
        """Wait for what the trials leave behind on all hosts. Safe to repeat."""
        await asyncio.gather(*(host.close() for host in self._trials))

    async def _choose(self) -> FleetHost:
        try:
            async with asyncio.timeout(self._limit_sec):
                await self._some.wait()
        except TimeoutError:
            raise EnvironmentFault(
                f"no host for trials in {self._limit_sec:g} s: start one, or let the run wait longer (outage_limit_sec)"
            ) from None
        return max(self._trials, key=lambda host: 1 - self._trials[host] / host.places)

    def _count(self, host: FleetHost, trials: int) -> None:
        self._trials[host] += trials
        self._show()

    def _show(self) -> None:
        self._observer.hosts({host.name: (n, host.places) for host, n in self._trials.items()}, self._n_left)

    def _resize(self) -> None:
        """Without a host one trial still passes: it waits for the next host, and ends the run if none comes."""
        self._gate.resize(max(1, sum(host.places for host in self._trials)))
        self._show()
