"""What the server forgets by and by, and what it makes of what a killed one has left: one server, started twice."""

import sqlite3
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import live_server

from .server_parts import Raw, awaited, refused

TOKENS = list(range(5, 29))


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("brief")


BRIEF = {"SKYRL_TX_KEEP_SEC": "1", "SKYRL_TX_CONTEXT_LIMIT": "64"}


def query(state: Path, statement: str, *values: Any) -> list[Any]:
    with sqlite3.connect(state / "tinker.db", timeout=60) as database:
        return database.execute(statement, values).fetchall()


def test_what_was_answered_long_ago_is_forgotten(tiny_model_dir: Path, server_env: None, state: Path) -> None:
    with live_server(tiny_model_dir, state, **BRIEF) as url:
        raw = Raw(url, tiny_model_dir)
        refused(raw.sample(TOKENS, max_tokens=64), "context limit of 64")
        model_id = raw.adapter()
        raw.settle(raw.sample(TOKENS)).raise_for_status()  # without max_tokens: what is left of the context
        raw.settle(raw.post("save_weights", model_id=model_id, path="kept")).raise_for_status()
        raw.settle(raw.post("save_weights", model_id=model_id, path="brief", ttl_seconds=1)).raise_for_status()
        nameless = {"model_id": model_id, "sampling_session_seq_id": 0, "seq_id": 9}
        raw.settle(raw.post("save_weights_for_sampler", **nameless)).raise_for_status()
        folder = state / "checkpoints" / model_id
        awaited(lambda: True if not (folder / "brief.tar.gz").exists() else None)
        refused(raw.post("weights_info", tinker_path=f"tinker://{model_id}/weights/brief"), "not found")
        assert raw.post("weights_info", tinker_path=f"tinker://{model_id}/weights/kept").status_code == 200
        full = "SELECT request_id FROM futures WHERE request_type = 'SAMPLE' OR request_data != '{}'"
        awaited(lambda: True if not query(state, full) else None)
        path = f"tinker://{model_id}/weights/kept"
        refused(raw.post("load_weights", model_id=model_id, path=path, optimizer=True), "not permitted")
        assert list((folder / "sampler_weights").iterdir())
        raw.post(f"sessions/{raw.session_id}/finish", reason={"type": "success"}).raise_for_status()
        awaited(lambda: True if not list((folder / "sampler_weights").glob("ss*")) else None)
        awaited(lambda: True if not query(state, "SELECT 1 FROM futures WHERE model_id = ?", model_id) else None)


def test_what_a_killed_server_was_doing_does_not_outlive_it(
    tiny_model_dir: Path, server_env: None, state: Path
) -> None:
    ((model_id, session_id),) = query(state, "SELECT model_id, session_id FROM models")
    pending = f"{uuid.uuid4().hex}:train:0"  # a model that nobody waits for any more
    config = '{"lora_config": {"rank": 8, "alpha": 32.0, "seed": 1}}'
    query(state, "UPDATE checkpoints SET status = 'PENDING' WHERE checkpoint_id = 'kept'")
    query(state, "UPDATE sessions SET last_heartbeat_at = '2020-01-01 00:00:00.000000'")
    query(
        state,
        "INSERT INTO futures (request_type, model_id, request_data, status, created_at) "
        "VALUES ('CREATE_MODEL', ?, ?, 'PENDING', '2020-01-01 00:00:00.000000')",
        pending,
        config,
    )
    query(
        state,
        "INSERT INTO models SELECT ?, base_model, lora_config, 'created', request_id, ?, created_at "
        "FROM models WHERE model_id = ?",
        pending,
        session_id,
        model_id,
    )
    with live_server(tiny_model_dir, state, SKYRL_TX_KEEP_SEC="900") as url:
        raw = Raw(url, tiny_model_dir)
        refused(raw.post("weights_info", tinker_path=f"tinker://{model_id}/weights/kept"), "stopped before")
        ((status, result),) = query(state, "SELECT status, result_data FROM futures WHERE model_id = ?", pending)
        assert status == "FAILED"
        assert "client of this model has gone" in result
