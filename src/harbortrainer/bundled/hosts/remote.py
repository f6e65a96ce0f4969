"""What the driver knows of a host: polls, loss, the weights that it samples, and the trials that it runs."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, Protocol

from harbortrainer.bundled.hosts.messages import Done, MachineFacts, Report, Weights, unpack_folder
from harbortrainer.bundled.hosts.node import CANCEL_SEC, FIRST_POLL_SEC
from harbortrainer.errors import DiskFault, EnvironmentFault, UserError
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.policy.sampler import SamplingClient
from harbortrainer.rollout.fleet import FleetHost
from harbortrainer.rollout.gates import TrialState
from harbortrainer.rollout.venue import RunParts, TrialCancelled, TrialRequest
from harbortrainer.run.trajectories import unpacked
from harbortrainer.stopping import run_until

POLL_SEC = 1.0
SLACK_SEC = 5.0  # after a lease: for the host to notice its end
log = logging.getLogger("harbortrainer")


class HostLost(Exception):
    """The host does not answer, or its process is gone."""


class Link(Protocol):
    """Calls the methods of a Node on another machine."""

    async def call(self, method: str, *args: Any) -> Any:
        """Return its result. Raises what the method raised, and HostLost."""
        ...

    def kill(self) -> None:
        """End the process there, if it can be reached."""


class RemoteHost(FleetHost):
    """A host behind a link. It is polled from `start` on, and lost once it is silent for `silence_sec`.

    A lost host does not come back: its machine joins as a new host. `outages` counts the loss, and outages of the
    host's daemon that hit a trial. `facts`, `has_images`: what the cluster knows of one that fits.
    """

    facts: MachineFacts | None = None
    has_images = False

    def __init__(
        self,
        name: str,
        link: Link,
        places: int,
        run: RunParts,
        silence_sec: float,
        on_loss: Callable[["RemoteHost"], None],
    ) -> None:
        self.name, self._link, self._places, self._run = name, link, places, run
        self._silence_sec, self._on_loss = silence_sec, on_loss
        self._outages = 0
        self._lost = asyncio.Event()
        self._why = ""
        self._polled_at = 0.0  # when the last poll was sent
        self._polling: asyncio.Task[None] | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._trials: set[str] = set()
        self._client: SamplingClient | None = None
        self._version = -1  # that the host has confirmed

    @property
    def places(self) -> int:
        return self._places

    @property
    def outages(self) -> int:
        return self._outages

    @property
    def quiet_at(self) -> float:
        """The event loop's time from which on the host, if it is lost, samples nothing."""
        return self._polled_at + self._silence_sec + SLACK_SEC

    async def start(self) -> MachineFacts:
        """Raises HostLost, UserError."""
        self._polled_at = asyncio.get_running_loop().time()
        self._polling = asyncio.create_task(self._poll(), name=f"poll {self.name}")
        return await self.ask("start")

    async def ask(self, method: str, *args: Any) -> Any:
        """Get result of a call. Raises HostLost once the host is lost, and a UserError there with the host's name."""
        try:
            return await self._unless_lost(self._link.call(method, *args))
        except UserError as error:
            raise type(error)(f"host {self.name}: {error}") from None

    def publish(self, client: Any, version: int) -> None:
        self._client = client
        self._publishing = asyncio.create_task(self._publish(self._publishing, client.portable(), version))

    async def drain(self) -> None:
        with contextlib.suppress(HostLost):
            await self._up_to_date()
            await self.ask("drain")

    async def abandon(self) -> None:
        with contextlib.suppress(HostLost):
            await self.ask("abandon")

    async def run(self, request: TrialRequest) -> Trajectory:
        if request.weights is not None:
            raise UserError("hosts: an earlier evaluation samples weights of its own; let it end with hosts=none")
        if self._lost.is_set():  # between the choice of the host and now
            self._outages += 1
        try:
            await self._unless_lost(self._run.gates.weights.wait())
            await self._up_to_date()
            done = await self._trial(request)
        except HostLost:
            return self._fault(request)
        except (EnvironmentFault, DiskFault) as error:  # of this host; the others go on
            self.lose(str(error))
            return self._fault(request)
        if done.cancelled:  # not by this side: the host ends
            self.lose("it has ended its trials")
            return self._fault(request)
        self._outages += done.hit
        return await asyncio.to_thread(_stored, request, done)

    async def close(self) -> None:
        """End the host's trials and process, and wait for its clean-up."""
        with contextlib.suppress(HostLost):
            if not self._lost.is_set():
                await self.ask("stop")
        if self._polling is not None:
            self._polling.cancel()
        if not self._lost.is_set():
            self._lost.set()
            self._link.kill()

    def lose(self, why: str) -> None:
        """Give the host up: what waits for it fails with HostLost. Safe to repeat."""
        if self._lost.is_set():
            return
        self._why = " ".join(why.split())
        self._outages += 1
        self._lost.set()
        log.warning("host %s is lost: %s; its trials run again elsewhere", self.name, self._why)
        self._link.kill()
        self._on_loss(self)

    async def _trial(self, request: TrialRequest) -> Done:
        call = asyncio.create_task(self.ask("trial", request, self._version))
        self._trials.add(request.name)
        try:
            done = await asyncio.shield(call)
        except asyncio.CancelledError:
            raise TrialCancelled(await self._cancelled(request, call)) from None
        finally:
            self._trials.discard(request.name)
        self._heard(done.report)
        return done

    async def _cancelled(self, request: TrialRequest, call: "asyncio.Task[Done]") -> tuple[Any, ...]:
        """Cancel the trial there. Returns the turns that were paid for."""
        with contextlib.suppress(HostLost):
            await self.ask("cancel", request.name)
        await asyncio.wait({call}, timeout=2 * CANCEL_SEC)
        if not call.done():
            call.cancel()
            return ()
        if call.cancelled() or call.exception() is not None:
            return ()
        self._heard(call.result().report)
        return (await asyncio.to_thread(_stored, request, call.result())).turns

    def _fault(self, request: TrialRequest) -> Trajectory:
        why = f"host {self.name} was lost: {self._why}"
        outcome = Outcome.INFRASTRUCTURE_ERROR
        return Trajectory(request.task.name, request.name, (), None, outcome, why, attempt=request.attempt)

    async def _publish(self, before: "asyncio.Task[None] | None", weights: Weights, version: int) -> None:
        if before is not None:
            await asyncio.wait({before})
        try:
            await self.ask("publish", weights, version)
        except HostLost:
            return
        except UserError as error:  # no key for the server there
            self.lose(str(error))
            return
        self._version = version

    async def _up_to_date(self) -> None:
        """Return when the host has the weights published last. Raises HostLost."""
        told = None
        while self._publishing is not told:  # another publication may begin meanwhile
            told = self._publishing
            if told is not None:
                await asyncio.shield(told)
        if self._lost.is_set():
            raise HostLost(self._why)

    async def _poll(self) -> None:
        """Until the host is lost. The first answer may take as long as its process needs to start."""
        loop = asyncio.get_running_loop()
        heard, patience = loop.time(), max(FIRST_POLL_SEC, self._silence_sec)
        while not self._lost.is_set():
            self._polled_at = loop.time()
            try:
                async with asyncio.timeout_at(heard + patience):
                    report = await self._link.call("poll", self._polled_at)
            except TimeoutError:
                return self.lose(f"no answer for {patience:g} s")
            except HostLost as error:
                return self.lose(str(error))
            heard, patience = loop.time(), self._silence_sec
            self._heard(report)
            await asyncio.sleep(max(0.0, self._polled_at + POLL_SEC - heard))

    def _heard(self, report: Report) -> None:
        if self._lost.is_set():  # a late answer
            return
        for name, state in report.states.items():
            if state is not None and name in self._trials:  # what waits for a trial tells its end
                self._run.observer.moved(name, TrialState(state))
        for tokens in report.sampled:
            self._run.observer.sampled(tokens)
        self.totals = report.counters
        lost = getattr(self._client, "lost", None)
        if report.lost_weights and lost is not None:
            lost.set()

    async def _unless_lost[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Result of `work`, which is cancelled when the host is lost. Raises HostLost."""
        try:
            return await run_until(work, self._gone())
        except HostLost as error:
            self.lose(str(error))
            raise

    async def _gone(self) -> NoReturn:
        await self._lost.wait()
        raise HostLost(self._why)


def _stored(request: TrialRequest, done: Done) -> Trajectory:
    """The trial, and its folder where a trial of this machine has it. Blocks. Raises DiskFault."""
    if done.folder:
        unpack_folder(done.folder, Path(request.trials_dir), trusted=False)
    return unpacked(done.trajectory)
