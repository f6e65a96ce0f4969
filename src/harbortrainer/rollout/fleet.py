"""The hosts of a run's trials, and which of them runs the next one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from harbortrainer.errors import EnvironmentFault
from harbortrainer.rollout import venue
from harbortrainer.rollout.slots import Slots


class Host(venue.Host, Protocol):
    """A machine that runs trials. `places`: the most of them at once."""

    name: str

    @property
    def places(self) -> int: ...

    async def close(self) -> None:
        """Wait for what the trials leave behind. Safe to repeat."""


class Fleet:
    """Gives each trial the host with the largest share of free places.

    `gate` is what trials hold; it has as many slots as the hosts have places, and gives them in the order of asking.
    """

    def __init__(self, gate: Slots, limit_sec: float) -> None:
        """`limit_sec`: longest time without any host that is waited for."""
        self._gate, self._limit_sec = gate, limit_sec
        self._trials: dict[Host, int] = {}  # that each host runs
        self._past_outages = 0  # of hosts that left
        self._some = asyncio.Event()

    @property
    def hosts(self) -> list[Host]:
        return list(self._trials)

    @property
    def outages(self) -> int:
        """Of all hosts."""
        return self._past_outages + sum(host.outages for host in self._trials)

    def join(self, host: Host) -> None:
        """Give trials to this host from now on."""
        self._trials[host] = 0
        self._some.set()
        self._resize()

    def leave(self, host: Host) -> None:
        """Give this host no trial any more. Those that it runs are its own to end. Safe to repeat."""
        if host in self._trials:
            del self._trials[host]
            self._past_outages += host.outages
            self._resize()
        if not self._trials:
            self._some.clear()

    @contextlib.asynccontextmanager
    async def host(self) -> AsyncIterator[Host]:
        """The host of one trial that has passed the gate. Raises EnvironmentFault when there is none for too long."""
        host = await self._choose()
        self._trials[host] += 1
        try:
            yield host
        finally:
            if host in self._trials:
                self._trials[host] -= 1

    async def close(self) -> None:
        """Wait for what the trials leave behind on all hosts. Safe to repeat."""
        await asyncio.gather(*(host.close() for host in self._trials))

    async def _choose(self) -> Host:
        try:
            async with asyncio.timeout(self._limit_sec):
                await self._some.wait()
        except TimeoutError:
            raise EnvironmentFault(
                f"no host for trials in {self._limit_sec:g} s: start one, or let the run wait longer (outage_limit_sec)"
            ) from None
        return max(self._trials, key=lambda host: 1 - self._trials[host] / host.places)

    def _resize(self) -> None:
        """Without a host one trial still passes: it waits for the next host, and ends the run if none comes."""
        self._gate.resize(max(1, sum(host.places for host in self._trials)))
