"""Sampler checkpoints as adapters of vLLM: unpacked, checked, registered before use, bounded in number.

Upstream: skyrl/tinker/extra/external_inference.py unpacks into a folder named MODEL_NAME. A name that is deleted and
saved again is sampled from the old weights, the first samples after a save race for the folder, nothing is deleted.
Here an adapter's name holds the time of its file and so never means other weights. vLLM ends when a registered adapter
has left its memory and its folder is gone: an adapter is forgotten by every server before its folder is deleted.
What the engine hands over (handover) is loaded as it is, while the engine still writes the archive.
Nothing of skyrl is imported here: the unit tests run without it.
"""

import asyncio
import os
import shutil
import tarfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import safetensors.numpy

from repairs.handover import DAMAGED, TENSORS, adapter_name, complete_config, offered, version
from repairs.vllm_client import Away, Gone, Refused, Vllm

KEEP = 8  # adapters registered at once; server/sampler.py gives vLLM room for more (--max-cpu-loras)
LOAD_TRIES, LOAD_PAUSE_SEC = 3, 1.0
BROKEN = (OSError, *DAMAGED)  # a damaged archive, or a full disk
LOOK_SEC = 0.02  # between two looks for what the engine hands over


@dataclass(eq=False)
class Adapter:
    """`users`: samples that use it; `on`: servers that have acknowledged its load."""

    name: str
    folder: Path
    lock: asyncio.Lock
    users: int = 0
    unpacked: bool = False
    on: set[Vllm] = field(default_factory=set)


class Adapters:
    """`files`: the server's checkpoints; `folder`: where they are unpacked for vLLM, which must be able to read it.

    `handed`: where the engine puts what it hands over. `counts`, for healthz: adapters that were taken over and those
    that were unpacked, seconds of unpacking and of loading before a first sample.
    """

    def __init__(
        self,
        files: Path,
        folder: Path,
        base_model: str,
        servers: Sequence[Vllm],
        keep: int = KEEP,
        handed: Path | None = None,
    ) -> None:
        self.files, self.folder, self.base_model, self.servers, self.keep = files, folder, base_model, servers, keep
        self.handed = handed or folder / "handed"
        self.counts = {"taken_over": 0, "unpacked": 0, "unpack_seconds": 0.0, "load_seconds": 0.0}
        self.known: OrderedDict[str, Adapter] = OrderedDict()  # oldest use first
        self._retiring: list[Adapter] = []
        self._changed, self._deleting = asyncio.Condition(), asyncio.Lock()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def clean(self) -> None:
        """At the start: what the last process left, in servers that still run and in the folder."""
        for server in self.servers:
            try:
                for name in await server.adapters():
                    await server.unload(name)
            except Away:
                continue  # it starts, and knows no adapter
        for folder in (self.folder, self.handed):
            await asyncio.to_thread(shutil.rmtree, folder, True)

    def file(self, model_id: str, checkpoint_id: str) -> Path:
        return self.files / model_id / "sampler_weights" / f"{checkpoint_id}.tar.gz"

    @asynccontextmanager
    async def held(self, model_id: str, checkpoint_id: str, wanted: str | None = None) -> AsyncIterator[Adapter]:
        """The adapter, unpacked, kept until the block ends. Waits while all places are in use.

        `wanted`: the version of the file that was asked for. Raises Refused: gone, replaced, or not finite.
        """
        file = self.file(model_id, checkpoint_id)
        gone = Gone(f"tinker://{model_id}/sampler_weights/{checkpoint_id} is gone: deleted or expired")
        try:
            found = version(file)
        except FileNotFoundError:
            raise gone from None
        if wanted not in (None, found):
            raise gone
        async with self._held(adapter_name(file, found)) as adapter:
            async with adapter.lock:
                if not adapter.unpacked:
                    try:
                        await self._unpack(adapter, file, found)
                    except FileNotFoundError:
                        raise gone from None
            yield adapter

    @asynccontextmanager
    async def _held(self, name: str) -> AsyncIterator[Adapter]:
        """The adapter, unpacked if the engine has handed it over."""
        adapter = await self._take(name)
        try:
            async with self._deleting:  # also for those that another request deletes: never more than `keep`
                await self._retire()
            async with adapter.lock:
                if not adapter.unpacked and (handed := self.handed / name).is_dir():
                    adapter.folder, adapter.unpacked = handed, True
                    self.counts["taken_over"] += 1
            yield adapter
        finally:
            await self._give_back(adapter)

    async def _unpack(self, adapter: Adapter, file: Path, found: str) -> None:
        """Raises Refused, FileNotFoundError."""
        began = time.monotonic()
        await asyncio.to_thread(unpack, file, adapter.folder, self.base_model, found)
        adapter.unpacked = True
        self.counts["unpacked"] += 1
        self.counts["unpack_seconds"] += time.monotonic() - began

    async def _take(self, name: str) -> Adapter:
        async with self._changed:
            while name not in self.known and len(self.known) >= self.keep and not self._set_aside():
                await self._changed.wait()
            adapter = self.known.get(name)
            if adapter is None:
                lock = self._locks.setdefault(name, asyncio.Lock())
                adapter = self.known[name] = Adapter(name, self.folder / name, lock)
            self.known.move_to_end(name)
            adapter.users += 1
            return adapter

    def _set_aside(self) -> bool:
        """Moves the adapter of the oldest use to those that are to be deleted. False: all are in use."""
        idle = next((adapter for adapter in self.known.values() if not adapter.users), None)
        if idle is not None:
            self._retiring.append(self.known.pop(idle.name))
        return idle is not None

    async def _give_back(self, adapter: Adapter) -> None:
        async with self._changed:
            adapter.users -= 1
            if not adapter.users and not adapter.unpacked:  # it could not be unpacked: the next request tries again
                self.known.pop(adapter.name, None)
            self._changed.notify_all()

    async def _retire(self) -> None:
        """Forget and delete what was set aside. A server that is away is asked again at the next call."""
        waiting, self._retiring = self._retiring, []
        for adapter in waiting:
            async with adapter.lock:
                if (again := self.known.get(adapter.name)) is not None and again.unpacked:
                    again.on |= adapter.on  # it was asked for since, and unpacked anew
                    continue
                try:
                    for server in list(adapter.on):
                        await server.unload(adapter.name)
                        adapter.on.discard(server)
                except Away:
                    self._retiring.append(adapter)
                    continue
                await asyncio.to_thread(shutil.rmtree, adapter.folder, True)

    async def load(self, adapter: Adapter, server: Vllm) -> None:
        """Registers a held adapter unless the server has acknowledged it. Raises Refused, Away."""
        async with adapter.lock:
            await self._load(adapter, server)

    async def _load(self, adapter: Adapter, server: Vllm) -> None:
        for left in reversed(range(LOAD_TRIES)):
            if server in adapter.on:
                return
            try:
                await server.load(adapter.name, str(adapter.folder))
                adapter.on.add(server)
            except Away as error:
                if server.down or (not left and not await server.is_healthy()):
                    raise
                if not left:  # it lives, and fails at this adapter alone
                    raise Refused(f"vLLM cannot load the adapter {adapter.name}: {error}") from None
                await asyncio.sleep(LOAD_PAUSE_SEC)

    async def preload(self, model_id: str, checkpoint_id: str) -> None:
        """Registers an adapter with all servers that are up, before its first sample. Raises Refused."""
        async with self.held(model_id, checkpoint_id) as adapter:
            await self._load_all(adapter)

    async def _load_all(self, adapter: Adapter) -> None:
        """On all servers at once. One that is away loads it at its first sample. Raises Refused."""
        async with adapter.lock:
            if adapter.on.issuperset(self.servers):
                return
            began = time.monotonic()
            loads = [self._load(adapter, server) for server in self.servers]
            ends = await asyncio.gather(*loads, return_exceptions=True)
            self.counts["load_seconds"] += time.monotonic() - began
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, Away):
                raise end

    async def take_over(self, model_id: str, checkpoint_id: str, since: int, saved: asyncio.Future[Any]) -> None:
        """Loads what the engine hands over, until the save is done: preload() then finds it loaded.

        `since`: when the save was asked for, in nanoseconds. A sampler that vLLM refuses is refused again by preload();
        one whose save fails is named by no sample.
        """
        archive = self.file(model_id, checkpoint_id)
        while not saved.done():
            name = await asyncio.to_thread(offered, self.handed, archive, since)
            if name is not None:
                with suppress(Refused):
                    async with self._held(name) as adapter:
                        if adapter.unpacked:
                            await self._load_all(adapter)
                return
            await asyncio.wait([saved], timeout=LOOK_SEC)


def unpack(file: Path, folder: Path, base_model: str, wanted: str) -> None:
    """Makes a folder that vLLM loads: beside its place, then renamed. Raises Refused, FileNotFoundError.

    FileNotFoundError also for a file of another version than `wanted`.
    """
    new = folder.with_name(f".{folder.name}.new")
    for path in (new, folder):  # leftovers of a process that was killed
        shutil.rmtree(path, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        with file.open("rb") as opened:
            if f"{os.fstat(opened.fileno()).st_mtime_ns:x}" != wanted:
                raise FileNotFoundError(file)
            with tarfile.open(fileobj=opened) as archive:
                archive.extractall(new, filter="data")
        complete(new, file.name, base_model)
        os.replace(new, folder)
    except FileNotFoundError:
        raise
    except BROKEN as error:
        raise Refused(f"sampler checkpoint {file.name} cannot be unpacked: {' '.join(str(error).split())}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def complete(folder: Path, name: str, base_model: str) -> None:
    """Checks the weights, and adds what vLLM requires of adapter_config.json. Raises Refused."""
    tensors = safetensors.numpy.load_file(folder / TENSORS)
    if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
        raise Refused(f"sampler checkpoint {name}: weights are not finite")
    complete_config(folder, base_model, tensors)
