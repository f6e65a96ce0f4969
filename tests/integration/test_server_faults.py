"""A real server that hangs, ends the session, or no longer has what was saved: an error or a recovery, never a hang."""

import asyncio
import contextlib
import json
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from harbortrainer.backend import sessions
from harbortrainer.backend.connect import Backend
from harbortrainer.backend.contract import CallLimits
from harbortrainer.backend.load import POLL_SEC, say_what_compiles
from harbortrainer.backend.policy import PolicyTrainer
from harbortrainer.backend.sessions import DUMMY_KEY, end_session, open_rest, open_session
from harbortrainer.errors import BackendError, ServerLost, WeightsGone
from harbortrainer.policy.clock import Clock
from harbortrainer.policy.sampler import PolicySampler, SamplingError
from harbortrainer.probe.session import ProbeSession
from harbortrainer.run.checkpoints import CheckpointLog, PolicyIdentity
from harbortrainer.stopping import Stop
from harbortrainer.training.outage import Outage, create_or_restore
from harbortrainer.training.outside import Outside
from tests.conftest import ROOT, SMALL_SERVER
from tests.support.engine_parts import every_slot
from tests.support.small_disk import small_disk
from tests.support.small_server import checkpoints_base, send
from tests.support.tiers import first

from .test_backend_live import config, logprobs, sampled, train

POLICY = PolicyIdentity("m", 8, "chat_template:1", "off")


@contextlib.asynccontextmanager
async def trained(url: str, model: Path) -> AsyncIterator[tuple[Backend, PolicyTrainer]]:
    settings = config(url, model)
    backend = await Outside().connect(settings)
    trainer = await PolicyTrainer.create(backend, settings)
    try:
        yield backend, trainer
    finally:
        await trainer.close()
        await backend.close(done=True)


@contextlib.contextmanager
def paused(url: str, *, engine_only: bool = False) -> Iterator[None]:
    send(url, signal.SIGSTOP, engine_only=engine_only)
    try:
        yield
    finally:
        send(url, signal.SIGCONT, engine_only=engine_only)


def recovery(trainer: PolicyTrainer, log: CheckpointLog, said: list[str]) -> Outage:
    display: Any = SimpleNamespace(say=said.append)
    return Outage(trainer, PolicySampler(), log, display, Stop(), 300)


async def save(trainer: PolicyTrainer, log: CheckpointLog, step: int) -> str:
    path = await trainer.save(step)
    await log.add(POLICY.checkpoint(step, path), trainer.delete)
    return path


async def test_processes_that_were_killed_hold_no_slots_of_the_next(
    server_url: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """More of them, one after the other, than the server has slots, long before their sessions time out."""
    settings = config(server_url, tiny_model_dir)
    display: Any = SimpleNamespace(say=lambda _: None)
    killed: list[Backend] = []
    try:
        for _ in range(int(SMALL_SERVER["MAX_LORA_ADAPTERS"]) + 1):
            killed.append(await Outside().connect(settings))
            log = CheckpointLog(tmp_path / "checkpoints.jsonl")
            policy = await create_or_restore(killed[-1], settings, log, display)
            assert log.models()[-1] == policy.model_id
    finally:
        for backend in killed:
            await backend.close(done=True)


PROBES = """
import asyncio, sys
from pathlib import Path
from harbortrainer.training.outside import Outside
from tests.support.live_backend import config

asyncio.run(Outside().connect(config(sys.argv[1], Path(sys.argv[2]))))
"""


async def has_adapter(url: str, cache: Path) -> bool:
    """Whether the session that is noted in `cache` has made one."""
    notes = list((cache / "harbortrainer" / "sessions").glob("*.json"))
    if not notes:
        return False
    async with httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=600) as http:
        (session_id,) = (json.loads(note.read_text())["session_id"] for note in notes)
        return bool((await http.get(f"/sessions/{session_id}")).json()["training_run_ids"])


@pytest.mark.nightly
async def test_a_process_that_was_killed_while_it_probed_holds_no_slot_of_the_next(
    server_url: str, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has one free slot."""
    cache, said, url = tmp_path / "cache", [], server_url
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    async with every_slot(url, tiny_model_dir, but=1):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROBES, url, tiny_model_dir, cwd=ROOT)
        async with asyncio.timeout(600):
            while not await has_adapter(url, cache):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        session = await open_session(await open_rest(url, DUMMY_KEY), url, DUMMY_KEY, said.append)
        bench = ProbeSession(session, str(tiny_model_dir))
        try:
            await bench.renew()  # what a probe asks for first
        finally:
            await bench.close()
            await end_session(session.service, done=True)
    assert len(said) == 1 and said[0].startswith(f"ended 1 sessions at {url}")


async def test_a_paused_server_is_lost_within_the_limit_and_gone_on_with(
    server_url: str, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, said = CheckpointLog(tmp_path / "checkpoints.jsonl"), []
    async with trained(server_url, tiny_model_dir) as (backend, trainer):
        published = await trainer.publish(0)
        sequences = await sampled(published)
        await train(trainer, sequences)
        path = await save(trainer, log, 1)
        expected = await logprobs(trainer, sequences)
        sampler = PolicySampler(request_timeout_sec=2.0)
        sampler.publish(published, 0)
        with paused(server_url):
            monkeypatch.setattr(backend, "limits", CallLimits(silence_sec=3.0))
            with pytest.raises(SamplingError, match="no answer within 2 s"):
                await sampler.sample([5, 6, 7], max_tokens=8, temperature=1.0, stop=())
            with pytest.raises(ServerLost, match=r"forward_backward: .* has not answered for 3 s"):
                await train(trainer, sequences)
            monkeypatch.setattr(sessions, "CLOSE_LIMIT_SEC", 0.5)
            await asyncio.wait_for(backend.close(done=False), 600)  # at a run's end
        monkeypatch.undo()
        assert await recovery(trainer, log, said).restore(ServerLost("gone"), 1) == 1
        assert await logprobs(trainer, sequences) == pytest.approx(expected, abs=1e-4)
        await trainer.delete(path)
    assert "step 1 is restored as soon as the server answers" in said[0] and path in said[1]


@pytest.mark.nightly
async def test_the_clock_of_a_trial_stands_still_while_the_server_is_frozen(
    server_url: str, tiny_model_dir: Path
) -> None:
    """For longer than the trial has. Two outages: `bench.outages`, and `tests/unit/test_silence.py`."""
    limit, frozen = 3.0, 6.5
    async with trained(server_url, tiny_model_dir) as (backend, trainer):
        sampler = PolicySampler(silences=backend.silences)
        sampler.publish(await trainer.publish(0), 0)
        await sampler.sample([5, 6, 7], max_tokens=8, temperature=1.0, stop=())  # it compiles
        looking = asyncio.create_task(say_what_compiles(backend.load, print))
        await asyncio.sleep(POLL_SEC)
        began = asyncio.get_running_loop().time()
        try:
            async with Clock.of(limit, lambda: sampler.lost_since(began)) as clock:
                with paused(server_url):
                    asking = asyncio.create_task(sampler.sample([5, 6, 7], max_tokens=8, temperature=1.0, stop=()))
                    await asyncio.sleep(frozen)
                assert (await asking).tokens_T and not clock.expired()
        finally:
            looking.cancel()
        assert backend.silences.silent(began) == pytest.approx(frozen, abs=POLL_SEC)


@pytest.mark.nightly
async def test_an_engine_that_never_answers_is_lost_within_the_limit(server_url: str, tiny_model_dir: Path) -> None:
    """healthz answers all the time."""
    async with trained(server_url, tiny_model_dir) as (backend, trainer):
        sequences = await sampled(await trainer.publish(0))
        await train(trainer, sequences)
        limits = CallLimits(update_sec=2.0)
        monkeypatched = pytest.MonkeyPatch()
        monkeypatched.setattr(trainer, "_limits", limits)
        with paused(server_url, engine_only=True):
            with pytest.raises(ServerLost, match="forward_backward: no answer within 2 s"):
                await train(trainer, sequences)
            with pytest.raises(ServerLost, match="save_state: no answer within 2 s"):
                await trainer.save(1)
            with pytest.raises(ServerLost, match="save_weights_for_sampler: no answer within 2 s"):
                await trainer.publish(1)
        monkeypatched.undo()
        await trainer.reload(None)
        assert backend.about["name"] == "harbortrainer"


async def test_an_ended_session_and_lost_states_are_recovered_from(
    server_url: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    log, said = CheckpointLog(tmp_path / "checkpoints.jsonl"), []
    expected: list[list[float]] = []
    async with trained(server_url, tiny_model_dir) as (backend, trainer):
        sequences = await sampled(await trainer.publish(0))
        expected.append(await logprobs(trainer, sequences))
        for step in (1, 2, 3):
            await train(trainer, sequences)
            await save(trainer, log, step)
            expected.append(await logprobs(trainer, sequences))
        recovering = recovery(trainer, log, said)
        for left in (3, 1, 0):
            for record in log.records[left:]:
                await trainer.delete(record.path)
            session = backend.service.holder.get_session_id()
            async with httpx.AsyncClient(base_url=f"{server_url}/api/v1", timeout=600) as http:
                ended = await http.post(f"/sessions/{session}/finish", json={"reason": {"type": "success"}})
                ended.raise_for_status()
            with pytest.raises(ServerLost) as lost:
                await train(trainer, sequences)
            assert await recovering.restore(lost.value, 4 + 3 - left) == left
            assert await logprobs(trainer, sequences) == pytest.approx(expected[left], abs=1e-4)
            assert sum("lost: the state after step" in line for line in said) == 3 - left
    assert "from the seed" in said[-2] and "seed" in said[-1]


@pytest.mark.nightly
async def test_a_state_that_the_servers_disk_has_lost_is_gone(server_url: str, tiny_model_dir: Path) -> None:
    """The server "loaded" the new adapter's own weights: the run continued from its seed without a word."""
    async with trained(server_url, tiny_model_dir) as (_, trainer):
        path = await trainer.save(0)
        folder = checkpoints_base(server_url) / trainer.model_id / f"{path.rsplit('/', 1)[-1]}.tar.gz"
        for file in folder.rglob("_*"):
            file.write_text("{")
        with pytest.raises(BackendError, match=rf"{folder} is damaged, .*; restore that folder, or delete it"):
            await trainer.reload(path)
        shutil.rmtree(folder)
        with pytest.raises(WeightsGone):
            await trainer.reload(path)


ROOM = 64 * 1024  # bytes: less than a state takes


async def test_a_full_disk_of_the_server_is_told_and_leaves_no_half_checkpoint(
    server_url: str, tiny_model_dir: Path
) -> None:
    """The size of a saved state varies by a third, as its writers' threads meet: two make room for one."""
    async with trained(server_url, tiny_model_dir) as (backend, trainer):
        with small_disk(4) as disk:
            folder = checkpoints_base(server_url) / trainer.model_id
            folder.parent.mkdir(exist_ok=True)
            folder.symlink_to(disk.folder)
            saved = [await trainer.save(step) for step in range(2)]
            disk.fill(but=ROOM)
            with pytest.raises(BackendError, match="save_state: the server's disk is full: make room") as full:
                await trainer.save(2)
            assert not isinstance(full.value, ServerLost), "waiting and restoring would not help"
            listed = (await backend.rest.list_checkpoints(trainer.model_id)).checkpoints
            assert sorted(one.tinker_path for one in listed) == sorted(saved)
            names = {path.rsplit("/", 1)[-1] for path in saved}
            assert {file.name.removesuffix(".tar.gz") for file in disk.folder.iterdir()} == names | {"ballast"}
            for path in saved:
                await trainer.delete(path)
            path = await trainer.save(99)
            await trainer.reload(path)
            await trainer.delete(path)


@contextlib.asynccontextmanager
async def silent_server(*answered: str) -> AsyncIterator[str]:
    """Takes every connection and answers none but GETs of these paths' last parts."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.split()[1].decode().rsplit("/", 1)[-1] in answered:
                body = b'{"status": "ok"}'
                writer.write(b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n" + body)
            await reader.read()
        writer.close()

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


CONNECT = """
import asyncio, sys
from harbortrainer.backend import connect, health, sessions
from harbortrainer.config import Config
from harbortrainer.training.outside import Outside
connect.CALL_LIMIT_SEC = sessions.CALL_LIMIT_SEC = 1.0
health.HEALTH_LIMIT_SEC = float(sys.argv[2])
asyncio.run(Outside().connect(Config(backend="skyrl-tx", skyrl_tx_url=sys.argv[1], model_name="m", tasks_dir="-")))
"""


@pytest.mark.parametrize(
    ("answered", "words"), first(1, [(("healthz",), "ServerLost: connecting to"), ((), "UserError: skyrl_tx_url=")])
)
async def test_a_server_that_takes_connections_and_never_answers_is_refused(
    answered: tuple[str, ...], words: str
) -> None:
    """And the process ends, whatever the SDK's threads still wait for."""
    async with silent_server(*answered) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CONNECT, url, "600" if answered else "1", cwd=ROOT, stderr=asyncio.subprocess.PIPE
        )
        try:
            _, error = await asyncio.wait_for(process.communicate(), 600)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    last = error.decode().strip().splitlines()[-1]
    assert words in last and "no answer within 1 s" in last
