"""What the engine hands over to vLLM: whole or not at all, loaded before its archive is there, bounded, cleaned."""

import asyncio
import json
import os
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from repairs import archives, handover
from repairs.handover import CONFIG, MOST, TENSORS, adapter_name, offer, offered
from repairs.vllm_adapters import Adapters, version
from repairs.vllm_client import Vllm
from tests.support.fake_vllm import KEY, FakeVllm

MODEL_ID = "session:train:0"
LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


class Server:
    """The API's adapters over two fake vLLMs, and an engine that saves in steps."""

    def __init__(self, folder: Path, fakes: list[FakeVllm]) -> None:
        self.fakes, self.clients = fakes, [Vllm(fake.url, KEY) for fake in fakes]
        self.handed = folder / "memory"
        self.adapters = Adapters(folder / "files", folder / "adapters", "base", self.clients, 3, self.handed)
        self.last = 1000

    def hand_over(self, name: str, value: float = 1.0) -> str:
        """As the engine does before it writes the archive. Returns the version."""
        self.last += 1
        found = f"{self.last:x}"

        def write(new: Path) -> None:
            tensors = {f"{LAYER}.lora_{part}.weight": np.full((2, 2), value, np.float32) for part in "AB"}
            (new / TENSORS).write_bytes(safetensors.numpy.save(tensors))
            (new / CONFIG).write_text(json.dumps({"r": 2, "lora_alpha": 32}))
            handover.complete_config(new, "base", tensors)

        assert offer(self.handed, adapter_name(self.file(name), found), 100, write)
        return found

    def archive(self, name: str, found: str) -> None:
        """As the engine does then."""
        folder, file = self.handed / adapter_name(self.file(name), found), self.file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        archives.pack(file, {part: (folder / part).read_bytes() for part in (TENSORS, CONFIG)})
        os.utime(file, ns=(self.last, self.last))
        assert version(file) == found

    def file(self, name: str) -> Path:
        return self.adapters.file(MODEL_ID, name)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    fakes = [FakeVllm(), FakeVllm()]
    for fake in fakes:
        await fake.start()
    made = Server(tmp_path, fakes)
    yield made
    for client in made.clients:
        await client.close()
    for fake in fakes:
        fake.load_gate.set()
        await fake.stop()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def test_an_adapter_is_loaded_everywhere_at_once_before_its_archive_is_there(server: Server) -> None:
    saved: asyncio.Future[None] = asyncio.Future()
    taking = asyncio.create_task(server.adapters.take_over(MODEL_ID, "one", 1, saved))
    for fake in server.fakes:
        fake.load_gate.clear()
    found = server.hand_over("one")
    await asyncio.wait_for(until(lambda: all(fake.loading for fake in server.fakes)), 600)
    for fake in server.fakes:
        fake.load_gate.set()
    await asyncio.wait_for(taking, 600)
    server.archive("one", found)
    await server.adapters.preload(MODEL_ID, "one")
    async with server.adapters.held(MODEL_ID, "one", found) as adapter:
        assert adapter.folder.parent == server.handed
    assert [fake.loads for fake in server.fakes] == [[adapter.name]] * 2
    assert server.adapters.counts["taken_over"] == 1 and server.adapters.counts["unpacked"] == 0


async def test_without_a_hand_over_the_archive_is_unpacked(server: Server) -> None:
    saved: asyncio.Future[None] = asyncio.Future()
    taking = asyncio.create_task(server.adapters.take_over(MODEL_ID, "one", 1, saved))
    server.archive("one", server.hand_over("other") and server.hand_over("one"))
    await asyncio.wait_for(taking, 600)
    await server.adapters.clean()  # as after a start: what was handed over is gone
    assert not server.handed.exists()
    for fake in server.fakes:
        fake.registered.clear()
    fresh = Adapters(server.adapters.files, server.adapters.folder, "base", server.clients, 3, server.handed)
    done: asyncio.Future[None] = asyncio.Future()
    done.set_result(None)
    await fresh.take_over(MODEL_ID, "one", 1, done)
    await fresh.preload(MODEL_ID, "one")
    assert fresh.counts["unpacked"] == 1 and all(len(fake.registered) == 1 for fake in server.fakes)


async def test_what_was_handed_over_leaves_with_its_adapter(server: Server) -> None:
    for name in ("a", "b", "c", "d", "e"):
        server.archive(name, server.hand_over(name))
        await server.adapters.preload(MODEL_ID, name)
    left = {folder.name for folder in server.handed.iterdir()}
    assert len(left) == 3 and left == set(server.fakes[0].registered)
    await server.adapters.preload(MODEL_ID, "a")
    assert server.adapters.counts["unpacked"] == 1 and server.fakes[0].most_registered == 3


def test_an_offer_is_whole_or_not_there(tmp_path: Path) -> None:
    def fails(error: Exception) -> Callable[[Path], None]:
        def write(new: Path) -> None:
            (new / TENSORS).write_bytes(b"half")
            raise error

        return write

    assert not offer(tmp_path, "full", 1, fails(OSError(28, "No space left on device")))
    with pytest.raises(ValueError, match="a defect"):
        offer(tmp_path, "broken", 1, fails(ValueError("a defect")))
    (tmp_path / ".killed.new").mkdir()
    assert not offer(tmp_path, "large", 1 << 60, lambda new: None) and not list(tmp_path.iterdir())
    assert [offer(tmp_path, str(n), 1, lambda new: None) for n in range(MOST + 1)] == [*[True] * MOST, False]
    assert len(os.listdir(tmp_path)) == MOST


def test_an_offer_is_found_by_its_own_name_alone(tmp_path: Path) -> None:
    file = tmp_path / "model" / "sampler_weights" / "a.tar.gz"
    for name in ("model_a_b_ff", "model_a_9", "model_a_1f", "other_a_ffff", "model_a_zz", ".model_a_fff.new"):
        (tmp_path / "handed" / name).mkdir(parents=True)
    assert offered(tmp_path / "handed", file, 0x1E) == "model_a_1f", "9 was saved before"
    assert offered(tmp_path / "handed", file, 0x20) is None and offered(tmp_path / "none", file, 0) is None


def test_the_folder_is_in_memory_where_there_is_room(tmp_path: Path) -> None:
    memory, state = tmp_path / "memory", tmp_path / "state"
    memory.mkdir()
    mine = handover.make_folder(state, memory, 1)
    assert mine.parent == memory and mine.name.endswith(f"-{os.getpid()}")
    (memory / f"{mine.name.rpartition('-')[0]}-999999999").mkdir()
    mine.mkdir()
    assert handover.make_folder(state, memory, 1) == mine and os.listdir(memory) == [mine.name]
    assert handover.make_folder(state, memory, 1 << 60).parent == state


def test_an_archive_in_members_is_one_archive(tmp_path: Path) -> None:
    files = {"large": os.urandom(2 * archives.CHUNK + 1), "empty": b"", "small": b"text"}
    archives.pack(tmp_path / "a.tar.gz", {name: memoryview(data) for name, data in files.items()})
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        archive.extractall(tmp_path / "out", filter="data")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == files
