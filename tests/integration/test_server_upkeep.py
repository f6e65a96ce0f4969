"""What the server forgets by and by, and what it makes of what a killed one has left: one server, started twice."""

import asyncio
import json
import os
import signal
import sqlite3
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker

from tests.conftest import SMALL_SERVER
from tests.support.engine_parts import DATA, adapters, prompt_logprobs, step
from tests.support.processes import freeze
from tests.support.server_parts import Raw, awaited, refused
from tests.support.small_server import GONE_SEC, Server, processes_of, wait_until

TOKENS = list(range(5, 29))
UNANSWERED = "status = 'PENDING', result_data = NULL, completed_at = NULL"
LOOK_SEC = 1  # pause between two looks for clients that have vanished
BRIEF = {"SKYRL_TX_KEEP_SEC": "2", "SKYRL_TX_CONTEXT_LIMIT": "64"}


@pytest.fixture(scope="module")
def server(server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(
        tmp_path_factory.mktemp("brief"), "--session-cleanup-interval-sec", str(LOOK_SEC), SESSION_TIMEOUT="10"
    )
    made.start(**BRIEF)
    yield made
    made.stop()


def query(server: Server, statement: str, *values: Any) -> list[Any]:
    with sqlite3.connect(server.state / "tinker.db", timeout=600) as database:
        return database.execute(statement, values).fetchall()


def test_what_was_answered_long_ago_is_forgotten(server: Server, tiny_model_dir: Path) -> None:
    raw = Raw(server.url, tiny_model_dir)
    refused(raw.sample(TOKENS, max_tokens=64), "context limit of 64")
    model_id = raw.adapter()
    raw.settle(raw.sample(TOKENS)).raise_for_status()  # without max_tokens: what is left of the context
    raw.settle(raw.post("save_weights", model_id=model_id, path="kept")).raise_for_status()
    raw.settle(raw.post("save_weights", model_id=model_id, path="brief", ttl_seconds=1)).raise_for_status()
    raw.settle(raw.post("save_weights", model_id=model_id, path="brief-too", ttl_seconds=1)).raise_for_status()
    for number in (9, 10):
        nameless = {"model_id": model_id, "sampling_session_seq_id": number, "seq_id": number}
        raw.settle(raw.post("save_weights_for_sampler", **nameless)).raise_for_status()
    folder = server.state / "checkpoints" / model_id
    awaited(lambda: True if not list(folder.glob("brief*")) else None)
    refused(raw.post("weights_info", tinker_path=f"tinker://{model_id}/weights/brief"), "not found")
    assert raw.post("weights_info", tinker_path=f"tinker://{model_id}/weights/kept").status_code == 200
    full = "SELECT request_id FROM futures WHERE request_type = 'SAMPLE' OR request_data != '{}'"
    awaited(lambda: True if not query(server, full) else None)
    path = f"tinker://{model_id}/weights/kept"
    refused(raw.post("load_weights", model_id=model_id, path=path, optimizer=True), "not permitted")
    assert list((folder / "sampler_weights").iterdir())
    raw.post(f"sessions/{raw.session_id}/finish", reason={"type": "success"}).raise_for_status()
    awaited(lambda: True if not list((folder / "sampler_weights").glob("ss*")) else None)
    awaited(lambda: True if not query(server, "SELECT 1 FROM futures WHERE model_id = ?", model_id) else None)
    assert query(server, "SELECT 1 FROM models WHERE model_id = ?", model_id), "its checkpoint needs it"


def test_a_session_that_left_nothing_is_forgotten(server: Server, tiny_model_dir: Path) -> None:
    raw = Raw(server.url, tiny_model_dir, beats=False)
    said = {"user_metadata": {"note": "gone soon"}}
    lora, model = {"rank": 8, "seed": 1}, str(tiny_model_dir)
    numbered = {"session_id": raw.session_id, "model_seq_id": 0, "base_model": model, "lora_config": lora}
    raw.settle(raw.post("create_model", **numbered, **said)).raise_for_status()
    sampling = {"session_id": raw.session_id, "sampling_session_seq_id": 0, "base_model": model}
    raw.post("create_sampling_session", **sampling).raise_for_status()
    rows = [
        "SELECT 1 FROM sessions WHERE session_id = ?",
        "SELECT 1 FROM models WHERE session_id = ?",
        "SELECT 1 FROM sampling_sessions WHERE session_id = ?",
        "SELECT 1 FROM model_notes WHERE model_id LIKE ? || '%'",
    ]
    assert all(query(server, row, raw.session_id) for row in rows)
    raw.post(f"sessions/{raw.session_id}/finish", reason={"type": "success"}).raise_for_status()
    awaited(lambda: None if any(query(server, row, raw.session_id) for row in rows) else True)


def test_a_new_model_waits_for_the_slots_of_clients_that_have_gone(server: Server, tiny_model_dir: Path) -> None:
    """The last of the other's models was still to be made when its client was given up: nobody gets it."""
    gone, raw = Raw(server.url, tiny_model_dir, beats=False), Raw(server.url, tiny_model_dir)
    asked = [gone.create() for _ in range(int(SMALL_SERVER["MAX_LORA_ADAPTERS"]))]
    with ThreadPoolExecutor() as pool:  # an answer is kept for 2 s here: it is waited for from the first
        never = pool.submit(gone.settle, asked[-1])
        made = raw.settle(raw.create())
        assert made.is_success, made.text
        refused(never.result(), "client of this model has gone")
    while (answer := raw.settle(raw.create())).is_success:
        pass
    assert "Maximum number of LoRA adapters" in answer.text, "the client that has every slot is there"
    raw.unload()


def test_a_client_that_vanishes_loses_its_slot_whenever_it_was_last_heard_of(
    server: Server, tiny_model_dir: Path
) -> None:
    """Before its first heartbeat; and when it came back after its time-out, and vanished again."""
    raw = Raw(server.url, tiny_model_dir, beats=False)

    def free(model_id: str) -> bool | None:
        found = query(server, "SELECT status FROM models WHERE model_id = ?", model_id)
        return True if found in ([("unloaded",)], []) else None  # [] once it was forgotten, too

    first = raw.adapter()
    awaited(lambda: free(first), limit_sec=240)
    raw.post("session_heartbeat", session_id=raw.session_id).raise_for_status()
    second = raw.adapter()
    awaited(lambda: free(second), limit_sec=240)


def test_a_server_that_does_not_listen_takes_no_model_from_its_clients(server: Server, tiny_model_dir: Path) -> None:
    raw = Raw(server.url, tiny_model_dir, beats=False)
    model_id = raw.adapter()
    api = int((server.state / "server.pid").read_text())
    log = server.state / "server.log"

    def looks() -> int:
        """Of the engine, for clients that are silent, while the API did not listen."""
        return log.read_text().count("The API does not listen")

    freeze(api)
    try:
        assert wait_until(lambda: looks() >= 1, 240)
        query(server, "UPDATE sessions SET last_heartbeat_at = '2020-01-01 00:00:00.000000'")
        before = looks()
        assert wait_until(lambda: looks() > before, 240)
    finally:
        os.kill(api, signal.SIGCONT)
    raw.post("session_heartbeat", session_id=raw.session_id).raise_for_status()
    raw.settle(raw.post("save_weights", model_id=model_id, path="still-there")).raise_for_status()


def test_samples_of_a_silent_client_give_way_and_fail_when_it_is_given_up(server: Server, tiny_model_dir: Path) -> None:
    log = server.state / "server.log"
    before = len(log.read_text())
    gone, here = Raw(server.url, tiny_model_dir, beats=False), Raw(server.url, tiny_model_dir)
    sampling = {"session_id": gone.session_id, "sampling_session_seq_id": 0, "base_model": str(tiny_model_dir)}
    made = gone.post("create_sampling_session", **sampling)
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}
    asked = {"sampling_session_id": made.json()["sampling_session_id"], "prompt": prompt, "num_samples": 64}
    params = {"max_tokens": 60, "temperature": 1.0}
    left = [gone.post("asample", **asked, seq_id=number, sampling_params=params) for number in range(99)]
    here.settle(here.sample([4, 5], max_tokens=4)).raise_for_status()
    refused(here.settle(left[-1]), "has gone")
    here.settle(here.sample([4, 5], max_tokens=4)).raise_for_status()
    assert " ERROR" not in log.read_text()[before:]


TABLES = ("sessions", "sampling_sessions", "models", "futures", "model_notes", "checkpoints", "checkpoint_notes")
SESSIONS = 10_000
MOST_GROWTH_MIB = 48.0  # of API and engine together, from the first tenth of the sessions to the last


@pytest.mark.nightly
def test_sessions_that_are_opened_and_left_leave_nothing(server: Server, tiny_model_dir: Path) -> None:
    """Each with a sampling session, every 20th with a model and a sampler; half say goodbye, half vanish."""
    known = {table: len(query(server, f"SELECT 1 FROM {table}")) for table in TABLES}
    files = files_of(server)
    early = 0.0
    for number in range(SESSIONS):
        raw = Raw(server.url, tiny_model_dir, beats=False)
        asked = {"session_id": raw.session_id, "sampling_session_seq_id": 0, "base_model": str(tiny_model_dir)}
        raw.post("create_sampling_session", **asked).raise_for_status()
        if number % 20 == 0:
            nameless = {"model_id": raw.adapter(), "sampling_session_seq_id": 1, "seq_id": 1}
            raw.settle(raw.post("save_weights_for_sampler", **nameless)).raise_for_status()
        if number % 2 or number % 40 == 0:
            raw.post(f"sessions/{raw.session_id}/finish", reason={"type": "success"}).raise_for_status()
        raw.http.close()
        if number == SESSIONS // 10:
            early = resident_mib(server)

    def left() -> dict[str, int]:
        rows = {table: len(query(server, f"SELECT 1 FROM {table}")) for table in TABLES}
        return {table: rows[table] for table in TABLES if rows[table] > known[table]}

    assert wait_until(lambda: not left() and files_of(server) <= files, 300), left()
    assert resident_mib(server) - early < MOST_GROWTH_MIB
    raw = Raw(server.url, tiny_model_dir)
    raw.adapter()  # a slot is free
    raw.unload()


def files_of(server: Server) -> set[Path]:
    return set((server.state / "checkpoints").rglob("*"))


def resident_mib(server: Server) -> float:
    """Of API and engine."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in processes_of(server.state)]
    return sum(pages) * 4096 / 2**20


@dataclass(frozen=True)
class Left:
    """What a server had in hand when it was killed."""

    unfinished: str  # a checkpoint that was being saved
    pending: str  # a model that was being made for a client that has gone since
    sampler: str
    logprobs: list[float]  # of the sampler
    waiting: httpx.Response  # the promise of a sample of the sampler that waited for vLLM
    unasked: str  # a sample that waited, for whose result nobody asks again
    engine_ended: bool


@pytest.fixture(scope="module")
def left(server: Server, tiny_model_dir: Path) -> Left:
    """`server`, killed by its API's process alone and started again."""
    raw = Raw(server.url, tiny_model_dir)
    model_id = raw.adapter()
    raw.settle(raw.post("save_weights", model_id=model_id, path="unfinished")).raise_for_status()
    sampler, logprobs = asyncio.run(saved_sampler(server.url, tiny_model_dir))
    prompt = {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}
    waiting = raw.post("asample", model_path=sampler, prompt=prompt, sampling_params={"max_tokens": 4})
    raw.settle(waiting).raise_for_status()
    unasked = raw.sample(TOKENS, max_tokens=4)
    raw.settle(unasked).raise_for_status()
    os.kill(int((server.state / "server.pid").read_text()), signal.SIGKILL)
    engine_ended = wait_until(lambda: not processes_of(server.state), GONE_SEC)
    pending = f"{uuid.uuid4().hex}:train:0"
    leave_pending(server, model_id, pending)
    leave_waiting(server, waiting.json()["request_id"])
    query(server, f"UPDATE futures SET {UNANSWERED} WHERE request_id = ?", unasked.json()["request_id"])
    server.start(SKYRL_TX_KEEP_SEC="900", SESSION_TIMEOUT="12")  # a sample is asked for again in these
    unfinished, asked = f"tinker://{model_id}/weights/unfinished", unasked.json()["request_id"]
    return Left(unfinished, pending, sampler, logprobs, waiting, asked, engine_ended)


async def saved_sampler(url: str, model: Path) -> tuple[str, list[float]]:
    async with adapters(url, model) as (service, client):
        await step(client, DATA)
        path = (await client.save_weights_for_sampler("kept")).path
        return path, await prompt_logprobs(await service.create_sampling_client(model_path=path))


def leave_pending(server: Server, model_id: str, pending: str) -> None:
    """As if the kill had come in the middle of a save and of a model's creation."""
    query(server, "UPDATE checkpoints SET status = 'PENDING' WHERE checkpoint_id = 'unfinished'")
    query(server, "UPDATE sessions SET last_heartbeat_at = '2020-01-01 00:00:00.000000'")
    query(
        server,
        "INSERT INTO futures (request_type, model_id, request_data, status, created_at) "
        "VALUES ('CREATE_MODEL', ?, ?, 'PENDING', '2020-01-01 00:00:00.000000')",
        pending,
        '{"lora_config": {"rank": 8, "alpha": 32.0, "seed": 1}}',
    )
    query(
        server,
        "INSERT INTO models SELECT ?, base_model, lora_config, 'created', request_id, session_id, created_at "
        "FROM models WHERE model_id = ?",
        pending,
        model_id,
    )


def leave_waiting(server: Server, request_id: str) -> None:
    """As if this sample, as vllm_requests stores it, had waited for vLLM, without which the server starts now."""
    ((found,),) = query(server, "SELECT request_data FROM futures WHERE request_id = ?", request_id)
    data = json.loads(found)
    data["sampling_params"]["seed_given"] = False
    query(
        server,
        f"UPDATE futures SET request_type = 'EXTERNAL', request_data = ?, {UNANSWERED} WHERE request_id = ?",
        json.dumps(data),
        request_id,
    )


def test_the_engine_ends_with_its_api(left: Left) -> None:
    assert left.engine_ended


def test_what_a_killed_server_was_doing_does_not_outlive_it(server: Server, left: Left, tiny_model_dir: Path) -> None:
    raw = Raw(server.url, tiny_model_dir)
    refused(raw.post("weights_info", tinker_path=left.unfinished), "stopped before")
    ((status, result),) = query(server, "SELECT status, result_data FROM futures WHERE model_id = ?", left.pending)
    assert status == "FAILED"
    assert "client of this model has gone" in result


def test_a_sample_that_waited_for_vllm_is_the_engines(server: Server, left: Left, tiny_model_dir: Path) -> None:
    assert Raw(server.url, tiny_model_dir).settle(left.waiting).is_success


@pytest.mark.nightly
def test_a_sample_for_which_nobody_asks_again_is_not_computed(server: Server, left: Left) -> None:
    def ended() -> Any:
        found = query(server, "SELECT status, result_data FROM futures WHERE request_id = ?", left.unasked)
        return found[0] if found[0][0] != "PENDING" else None

    status, result = awaited(ended)
    assert status == "FAILED" and "the client of this request has gone" in result


async def test_a_sampler_outlives_its_server(server: Server, left: Left) -> None:
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-dummy")
    sampling = await service.create_sampling_client(model_path=left.sampler)
    assert await prompt_logprobs(sampling) == pytest.approx(left.logprobs, abs=1e-5)


def test_cleaning_up_never_failed(server: Server, left: Left) -> None:
    assert left.engine_ended
    logs = [file.read_text() for file in server.state.glob("server.log*")]
    assert logs and not any("Cleaning up failed" in log for log in logs)


def test_a_stopped_server_leaves_no_process(server: Server, left: Left) -> None:
    assert "stopped the server" in server.stop()
    assert wait_until(lambda: not processes_of(server.state), GONE_SEC)
