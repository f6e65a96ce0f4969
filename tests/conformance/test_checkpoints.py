"""save_weights, load_weights, weights_info, list, time to live, delete."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import tinker

from .parts import RANK, adam_step, logprobs, refused, settled

HOUR = 3600  # seconds; the shortest time to live


@pytest.fixture(scope="module")
def saved(training) -> str:
    return settled(training.save_state("kept")).path


@pytest.fixture
def restore(service: tinker.ServiceClient, unload) -> Iterator[Callable[..., tinker.TrainingClient]]:
    """Makes adapters from saved states; unloads them after the test."""
    made: list[tinker.TrainingClient] = []

    def make(path: str, optimizer: bool = True) -> tinker.TrainingClient:
        create = service.create_training_client_from_state
        if optimizer:
            create = service.create_training_client_from_state_with_optimizer
        made.append(settled(create(path)))
        return made[-1]

    yield make
    assert [unload(client).status_code for client in made] == [200] * len(made)


def test_saved_weights_are_described_by_their_path(training, saved, rest, base_model):
    assert saved == f"tinker://{training.model_id}/weights/kept"
    info = settled(rest.get_weights_info_by_tinker_path(saved))
    assert (info.base_model, info.is_lora, info.lora_rank) == (base_model, True, RANK)


def test_a_restored_model_takes_the_identical_next_step(fresh, restore):
    client = fresh()
    for _ in range(2):
        adam_step(client)
    path = settled(client.save_state("state")).path
    adam_step(client)
    restored = restore(path)
    adam_step(restored)
    assert logprobs(restored) == pytest.approx(logprobs(client), abs=1e-4)


def test_restored_weights_without_the_optimizer_are_the_saved_ones(fresh, restore):
    client = fresh()
    for _ in range(3):
        adam_step(client)
    path, before = settled(client.save_state("state")).path, logprobs(client)
    adam_step(client)
    restored = restore(path, optimizer=False)
    assert restored.model_id != client.model_id
    assert logprobs(restored) == pytest.approx(before, abs=1e-5)
    adam_step(restored)
    moved = max(abs(a - b) for a, b in zip(logprobs(restored), logprobs(client), strict=True))
    assert moved > 1e-3  # fresh moments: another step than with those that were saved


def test_a_restored_model_says_what_it_is(saved, restore, base_model):
    info = restore(saved).get_info()
    assert info.model_data.model_name == base_model


def test_an_unloaded_models_state_can_be_restored(fresh, restore, unload):
    client = fresh()
    adam_step(client)
    path, before = settled(client.save_state("state")).path, logprobs(client)
    unload(client)
    restored = restore(path)
    assert logprobs(restored) == pytest.approx(before, abs=1e-5)


def test_a_models_checkpoints_are_listed_until_they_are_deleted(fresh, rest):
    client = fresh()
    paths = {settled(client.save_state("one")).path, settled(client.save_weights_for_sampler("two")).path}

    def listed() -> dict[str, str]:
        found = settled(rest.list_checkpoints(client.model_id)).checkpoints
        return {checkpoint.tinker_path: checkpoint.checkpoint_type for checkpoint in found}

    assert listed() == {path: "training" if "/weights/" in path else "sampler" for path in paths}
    for path in paths:
        settled(rest.delete_checkpoint_from_tinker_path(path))
    assert listed() == {}


def test_a_name_is_free_again_once_its_checkpoint_is_deleted(fresh, rest, restore):
    client = fresh()
    path = settled(client.save_state("again")).path
    settled(rest.delete_checkpoint_from_tinker_path(path))
    adam_step(client)
    assert settled(client.save_state("again")).path == path
    restored = restore(path, optimizer=False)
    assert logprobs(restored) == pytest.approx(logprobs(client), abs=1e-5)


def test_a_checkpoint_is_listed_as_public_while_it_is_published(fresh, rest):
    client = fresh()
    path = settled(client.save_state("public")).path
    settled(client.save_state("private"))

    def public() -> set[str]:
        found = [settled(rest.list_checkpoints(client.model_id)), settled(rest.list_user_checkpoints())]
        own = [{one.tinker_path for one in some.checkpoints if one.public} for some in found]
        assert own[0] <= own[1]
        return own[0]

    assert public() == set()
    settled(rest.publish_checkpoint_from_tinker_path(path))
    settled(rest.publish_checkpoint_from_tinker_path(path))
    assert public() == {path}
    settled(rest.unpublish_checkpoint_from_tinker_path(path))
    assert public() == set()
    refused(lambda: rest.publish_checkpoint_from_tinker_path(f"{path}-never-saved"), "not found")


def test_external_weights_are_files_of_an_adapter_until_they_are_deleted(fresh, rest):
    client = fresh()
    adam_step(client)
    path = settled(client.save_weights_external("out", ttl_seconds=HOUR)).path
    assert path == f"tinker://{client.model_id}/external_weights/out"
    found = settled(rest.get_external_weights_urls(path))
    assert found.expires > datetime.now(UTC)
    files = {name: httpx.get(url).raise_for_status().content for name, url in found.urls.items()}
    assert json.loads(files["adapter_config.json"])["r"] == RANK
    size = int.from_bytes(files["adapter_model.safetensors"][:8], "little")
    assert all(".lora_" in name for name in json.loads(files["adapter_model.safetensors"][8 : 8 + size]))
    url = found.urls["adapter_config.json"]
    assert httpx.get(url.replace("signature=", "signature=0")).status_code == 403
    assert [one.checkpoint_type for one in settled(rest.list_checkpoints(client.model_id)).checkpoints] == ["external"]
    settled(rest.delete_checkpoint_from_tinker_path(path))
    assert settled(rest.list_checkpoints(client.model_id)).checkpoints == []
    refused(lambda: rest.get_external_weights_urls(path), "not found")


def test_a_time_to_live_is_kept_and_can_be_changed(fresh, rest):
    client = fresh()
    path = settled(client.save_state("short", ttl_seconds=HOUR)).path
    settled(client.save_weights_for_sampler("sampler", ttl_seconds=HOUR))
    settled(client.save_state("for-ever"))

    def left() -> dict[str, timedelta | None]:
        found = settled(rest.list_checkpoints(client.model_id)).checkpoints
        return {
            one.checkpoint_id.rsplit("/", 1)[-1]: one.expires_at and one.expires_at - utc(one.time) for one in found
        }

    assert left() == {
        "short": pytest.approx(timedelta(seconds=HOUR), abs=timedelta(minutes=1)),
        "sampler": pytest.approx(timedelta(seconds=HOUR), abs=timedelta(minutes=1)),
        "for-ever": None,
    }
    settled(rest.set_checkpoint_ttl_from_tinker_path(path, None))
    assert left()["short"] is None


def utc(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)
