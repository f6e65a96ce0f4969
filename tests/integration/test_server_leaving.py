"""Slots of clients that went without a word: who comes next waits for them, and is not refused."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import live_server
from tests.support.server_parts import Raw

TIMEOUT_SEC = 5


@pytest.fixture(scope="module")
def one_slot(tiny_model_dir: Path, server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"MAX_LORA_ADAPTERS": "2", "SESSION_TIMEOUT": str(TIMEOUT_SEC)}
    with live_server(tiny_model_dir, tmp_path_factory.mktemp("leaving"), **settings) as url:
        yield url


def test_a_model_waits_for_the_slot_of_a_client_that_has_gone(one_slot: str, tiny_model_dir: Path) -> None:
    """Asked for before the session of the gone one has timed out, and twice in a row."""
    Raw(one_slot, tiny_model_dir, beats=False).adapter()
    for beats in (False, True):
        client = Raw(one_slot, tiny_model_dir, beats=beats)
        answer = client.settle(client.create())
        assert answer.is_success and "Maximum number" not in answer.text, answer.text
    refused = Raw(one_slot, tiny_model_dir)
    answer = refused.settle(refused.create())
    assert "Maximum number of LoRA adapters" in answer.text, "its holder is there"
    client.unload()


def test_a_model_that_waits_while_its_client_goes_takes_no_slot(one_slot: str, tiny_model_dir: Path) -> None:
    silent, gone = (Raw(one_slot, tiny_model_dir, beats=False) for _ in range(2))
    silent.adapter()
    gone.create().raise_for_status()  # waits for the slot of `silent`, and is given up with it
    began = time.monotonic()
    last = Raw(one_slot, tiny_model_dir)
    last.adapter()
    print(f"a slot after {time.monotonic() - began:.1f} s")
    last.unload()
