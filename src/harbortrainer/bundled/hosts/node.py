"""One machine's part of a run: it runs the trials that the driver sends, in a room with this machine as its host."""

import asyncio
import contextlib
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Never

from harbortrainer.backend.health import check_health
from harbortrainer.backend.load import look_on
from harbortrainer.bundled.hosts.afterwards import clean_afterwards
from harbortrainer.bundled.hosts.copies import load_images, save_images
from harbortrainer.bundled.hosts.facts import docker_faults, facts
from harbortrainer.bundled.hosts.messages import (
    Done,
    Job,
    MachineFacts,
    Report,
    Weights,
    pack_folder,
    unpack_folder,
)
from harbortrainer.docker.images.inventory import image_ids
from harbortrainer.errors import refuse
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.learning.treatment import FAULTS
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.policy.silence import Silences
from harbortrainer.rollout.gates import Gates, TrialObserver, TrialState
from harbortrainer.rollout.venue import Room, RunParts, TrialCancelled, TrialRequest
from harbortrainer.run.trajectories import packed
from harbortrainer.tasks.folders import folder_of
from harbortrainer.tasks.task import Task

FIRST_POLL_SEC = 120.0  # within which the driver polls for the first time
CANCEL_SEC = 60.0  # for cancelled trials to remove their containers; the rest is reaped


class Unheard(TrialObserver):
    """What the driver's observer has not heard of yet."""

    def __init__(self) -> None:
        self._states: dict[str, str | None] = {}
        self._sampled: list[int] = []

    def moved(self, trial_name: str, state: TrialState | None) -> None:
        self._states[trial_name] = state.value if state else None

    def sampled(self, tokens: int) -> None:
        self._sampled.append(tokens)

    def take(self) -> tuple[dict[str, str | None], list[int]]:
        taken = self._states, self._sampled
        self._states, self._sampled = {}, []
        return taken


class Node:
    """A machine's part of a run, called by the driver; the methods about trials need `prepare` before.

    The driver polls. Without a poll for `silence_sec` the driver counts as dead: sampling ends first, then the trials
    and their containers, then the process.
    """

    def __init__(
        self,
        job: Job,
        leave: Callable[[], object] = lambda: os._exit(0),
        look: Callable[[], MachineFacts] = facts,
        guard: Callable[[Path], None] = clean_afterwards,
    ) -> None:
        """`leave`, `look`, `guard`: a test's replacements of the process's end, its facts, and what outlives it."""
        self._job, self._venue, self._leave, self._look, self._guard = job, job.venue, leave, look, guard
        self._folder = Path(tempfile.mkdtemp(prefix="harbortrainer-host-"))
        self._silences = Silences()
        self._looking: asyncio.Task[Never] | None = None
        self._sampler = PolicySampler(
            powers_of_two=job.powers_of_two,
            silences=self._silences,
        )
        self._images = self._folder / "images.tar"
        self._seen = Unheard()
        self._heard: float | None = None  # by this machine's clock: when the last poll was sent
        self._behind = math.inf  # this machine's clock minus the driver's, and the fastest poll's way
        self._tasks: dict[str, Task] = {}
        self._running: dict[str, asyncio.Task[tuple[Trajectory, bool, bool]]] = {}
        self._stack = contextlib.AsyncExitStack()
        self._room: Room | None = None
        self._lease: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> MachineFacts:
        """Raises UserError when the daemon does not answer."""
        self._lease = asyncio.create_task(self._watch(), name="lease")
        await asyncio.to_thread(self._guard, self._folder)
        return await asyncio.to_thread(self._look)

    async def reach(self) -> None:
        """Raises UserError when this machine does not reach the run's server."""
        if self._job.server:
            await check_health(self._job.server, self._job.config)
            self._looking = asyncio.create_task(look_on(self._job.server, self._silences), name="look on")

    async def add(self, task: Task, packed: bytes) -> None:
        """Keep a task's folder, under its digest."""
        parent = self._folder / "tasks" / task.digest
        await asyncio.to_thread(unpack_folder, packed, parent, trusted=True)
        self._tasks[task.digest] = replace(task, ref=parent / Path(task.ref).name)

    async def prepare(self) -> list[str]:
        """Remove what dead runs left, and make the images of the tasks. Lines for the user. Raises UserError."""
        job, tasks, lines = self._job, list(self._tasks.values()), list[str]()
        template = await asyncio.to_thread(job.load_template, job.config)
        lines += await asyncio.to_thread(self._venue.check, tasks, job.config, template, job.places)
        parts = RunParts(job.config, self._sampler, template, job.run_id, Gates.of(job.config), self._seen)
        self._room = self._venue.room(parts)
        with docker_faults():
            await self._stack.enter_async_context(self._room.prepared(tasks, lines.append))
            self._room.expect(tasks)
            lacking = await asyncio.gather(*(self._lacking(self._room, task) for task in tasks))
        refuse(sorted(filter(None, lacking)))
        return lines

    async def _lacking(self, room: Room, task: Task) -> str:
        async with room.supplied(task) as why:
            return why and f"task {task.name}: {why}"

    async def images(self) -> dict[str, str]:
        """Get the tasks' images by name, each with its ID; "" = it is not here. Raises UserError, as the next ones."""
        with docker_faults():
            return await asyncio.to_thread(image_ids, [folder_of(task) for task in self._tasks.values()])

    async def save_images(self, names: Sequence[str]) -> int:
        """Write the images into a file for `read`. Returns its size in bytes."""
        with docker_faults():
            await asyncio.to_thread(save_images, names, self._images)
        return self._images.stat().st_size

    async def read(self, offset: int, size: int) -> bytes:
        return await asyncio.to_thread(_read, self._images, offset, size)

    async def write(self, data: bytes) -> None:
        """Add to the file for `load_images`."""
        await asyncio.to_thread(_append, self._images, data)

    async def load_images(self) -> None:
        """Take the images over that another host has saved."""
        with docker_faults():
            await asyncio.to_thread(load_images, self._images)
        self._images.unlink()

    async def publish(self, weights: Weights, version: int) -> None:
        """Let requests from now on sample these weights."""
        client = await asyncio.to_thread(weights.open, self._job.config)
        if self._ending is None:
            self._sampler.publish(client, version)

    async def drain(self) -> None:
        """Return when no request is in flight."""
        await self._sampler.drain()

    async def abandon(self) -> None:
        await self._sampler.abandon()

    async def trial(self, request: TrialRequest, version: int) -> Done:
        """Run a trial on weights `version`. Cancelled, it comes back with the turns that were paid for.

        Raises UserError, EnvironmentFault, DiskFault.
        """
        assert self._ending is not None or version == self._sampler.version, "the weights are not published here"
        here = replace(request, trials_dir=self._folder / "trials", task=self._tasks[request.task.digest])
        run = self._running[request.name] = asyncio.create_task(self._run(here), name=request.name)
        if self._ending is not None:
            run.cancel()
        try:
            trajectory, cancelled, hit = await run
        finally:
            del self._running[request.name]
        trajectory = replace(trajectory, trial_dir=str(request.trials_dir / request.name))
        npz, folder = await asyncio.to_thread(self._pack, trajectory)
        return Done(npz, folder, cancelled, hit, self._report())

    async def cancel(self, trial_name: str) -> None:
        if (run := self._running.get(trial_name)) is not None:
            run.cancel()

    async def poll(self, sent: float) -> Report:
        """Return the driver lived when its clock showed `sent`, in seconds.

        A poll that was long under way renews the lease only from the time at which it was sent.
        """
        self._behind = min(self._behind, asyncio.get_running_loop().time() - sent)
        self._heard = sent + self._behind
        return self._report()

    async def stop(self) -> None:
        """End what runs, and remove all that belongs to the run."""
        if self._lease is not None and self._ending is None:
            self._lease.cancel()
        await self._end()

    def _report(self) -> Report:
        states, sampled = self._seen.take()
        return Report(states, sampled, self._sampler.totals, self._sampler.lost)

    async def _run(self, request: TrialRequest) -> tuple[Trajectory, bool, bool]:
        """The trial, whether it was cancelled, and whether an outage of the daemon hit it."""
        assert self._room is not None
        hit = False
        try:
            async with self._room.gate, self._room.host() as host:
                await host.ready()
                before = host.outages
                trajectory = await host.run(request)
                if trajectory.outcome in FAULTS:
                    await host.suspect()
                hit = host.outages > before
        except asyncio.CancelledError as error:
            turns = error.turns if isinstance(error, TrialCancelled) else ()
            name = request.task.name
            return Trajectory(name, request.name, turns, None, Outcome.CANCELLED, attempt=request.attempt), True, False
        return trajectory, False, hit

    def _pack(self, trajectory: Trajectory) -> tuple[bytes, bytes]:
        folder = self._folder / "trials" / trajectory.trial_name
        tar = pack_folder(folder) if folder.exists() else b""
        shutil.rmtree(folder, ignore_errors=True)
        return packed(trajectory), tar

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            due = began + FIRST_POLL_SEC if self._heard is None else self._heard + self._job.silence_sec
            if (left := due - loop.time()) <= 0:
                break
            await asyncio.sleep(min(left, self._job.silence_sec))  # the first poll brings the end nearer
        print("no word from the driver: this host ends its trials", file=sys.stderr, flush=True)
        try:
            await self._end()
        finally:  # what it could not remove is removed after its process (afterwards.py)
            self._leave()

    async def _end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.create_task(self._ended(), name="end")
        await asyncio.shield(self._ending)

    async def _ended(self) -> None:
        self._sampler.withdraw()  # first: an update may come any time
        if self._looking is not None:
            self._looking.cancel()
        running = list(self._running.values())
        for run in running:
            run.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_SEC)
        await self._stack.aclose()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


def _read(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
