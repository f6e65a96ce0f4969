"""The server's samples from vLLM, without skyrl and vLLM: requests, adapters, replicas, failures."""

import asyncio
import dataclasses
import io
import json
import math
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from repairs import archives, vllm_adapters, vllm_sampling
from repairs.vllm_adapters import Adapters
from repairs.vllm_client import Ask, Refused, Vllm
from repairs.vllm_sampling import Sampling
from tests.support.fake_vllm import KEY, FakeVllm

ASK = Ask(prompt=(1, 2, 3), n=1, max_tokens=4, temperature=1.0, top_p=1.0, top_k=-1, seed=None)
MODEL_ID = "session:train:0"


@dataclasses.dataclass
class Parts:
    fakes: list[FakeVllm]
    sampling: Sampling
    adapters: Adapters
    files: Path
    lines: list[str]
    status: Path

    @property
    def fake(self) -> FakeVllm:
        return self.fakes[0]

    async def sample(self, name: str = "", ask: Ask = ASK, weights: str | None = None) -> dict[str, Any]:
        """Of the base model, or of the sampler with this name."""
        return await self.sampling.sample(ask, MODEL_ID if name else "", name, weights)

    def save(self, name: str, value: float = 1.0, **config: Any) -> Path:
        return write_checkpoint(self.adapters.file(MODEL_ID, name), value, **config)


def write_checkpoint(file: Path, value: float, **config: Any) -> Path:
    """A sampler checkpoint with one adapted layer."""
    file.parent.mkdir(parents=True, exist_ok=True)
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{layer}.lora_{part}.weight": np.full((2, 2), value, np.float32) for part in "AB"}
    contents = {
        "adapter_model.safetensors": safetensors.numpy.save(tensors),
        "adapter_config.json": json.dumps({"r": 2, "lora_alpha": 32, **config}).encode(),
    }
    with tarfile.open(file, "w:gz") as archive:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return file


async def parts_of(tmp_path: Path, count: int, keep: int) -> Parts:
    fakes = [FakeVllm() for _ in range(count)]
    for fake in fakes:
        await fake.start()
    servers, lines, status = [Vllm(fake.url, KEY) for fake in fakes], [], tmp_path / "vllm.json"
    adapters = Adapters(tmp_path / "checkpoints", tmp_path / "adapters", "base", servers, keep)
    sampling = Sampling(servers, adapters, "base", status, lines.append)
    return Parts(fakes, sampling, adapters, tmp_path, lines, status)


@pytest.fixture
async def parts(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Parts]:
    """One server and 3 places for adapters, unless the test's parameter gives other numbers."""
    made = await parts_of(tmp_path, *getattr(request, "param", (1, 3)))
    yield made
    for server in made.sampling.servers:
        await server.close()
    for fake in made.fakes:
        fake.gate.set()
        await fake.stop()


def replicas(count: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("parts", [(count, 3)], indirect=True)


async def test_a_request_has_all_settings_and_a_seed_only_if_given(parts: Parts) -> None:
    await parts.sample()
    await parts.sample(ask=dataclasses.replace(ASK, seed=0, stop_tokens=(5,), stop_strings=("a",), top_k=3, top_p=0.5))
    plain, full = parts.fake.asked
    assert "seed" not in plain and plain["model"] == "base" and plain["prompt"] == [1, 2, 3]
    assert plain["ignore_eos"] is True and plain["return_token_ids"] is True
    settings = {"seed": 0, "stop_token_ids": [5], "stop": ["a"], "top_k": 3, "top_p": 0.5, "max_tokens": 4}
    assert settings.items() <= full.items()


async def test_prompt_scores_are_aligned_with_the_prompt(parts: Parts) -> None:
    places = [None, {"2": {"logprob": -1.0}, "9": {"logprob": -0.1}}, {"3": {"logprob": -2.0}, "8": {"logprob": -3.0}}]
    parts.fake.answer = lambda answer: answer["choices"][0].update(prompt_logprobs=places)
    scored = await parts.sample(ask=dataclasses.replace(ASK, top_scores=1))
    assert parts.fake.asked[0]["prompt_logprobs"] == 1
    assert scored["prompt_logprobs"] == [None, -1.0, -2.0]
    assert scored["topk_prompt_logprobs"] == [None, [(9, -0.1)], [(3, -2.0)]]


async def test_a_burst_after_a_save_loads_once(parts: Parts) -> None:
    parts.save("one")
    found = await asyncio.gather(*(parts.sample("one") for _ in range(64)))
    assert len(found) == 64 and len(parts.fake.loads) == 1
    config = json.loads((parts.files / "adapters" / parts.fake.loads[0] / "adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj"] and config["base_model_name_or_path"] == "base"


async def test_the_oldest_unused_adapter_leaves_and_its_folder_after_it(parts: Parts) -> None:
    for name in ("a", "b", "c"):
        parts.save(name)
        await parts.sample(name)
    await parts.sample("a")
    parts.save("d")
    await parts.sample("d")
    assert [name.split("_")[1] for name in parts.fake.unloads] == ["b"]
    assert sorted(folder.name for folder in (parts.files / "adapters").iterdir()) == sorted(parts.fake.registered)
    await parts.sample("b")
    assert parts.fake.most_registered == 3 and not parts.fake.missing_folders


async def test_more_adapters_at_once_than_places_wait_for_one(parts: Parts) -> None:
    names = [f"n{i}" for i in range(8)]
    for name in names:
        parts.save(name)
    await asyncio.gather(*(parts.sample(name) for name in names * 3))
    assert parts.fake.most_registered <= 3 and not parts.fake.missing_folders and len(parts.fake.asked) == 24


async def test_a_name_saved_again_is_another_adapter(parts: Parts) -> None:
    file = parts.save("one")
    await parts.sample("one")
    before = vllm_adapters.version(file)
    os.utime(parts.save("one", 2.0), ns=(1, 10**18))
    await parts.sample("one")
    assert len(set(parts.fake.loads)) == 2
    with pytest.raises(Refused, match="is gone: deleted or expired"):
        await parts.sample("one", weights=before)


async def test_a_deleted_sampler_is_refused_although_vllm_has_it(parts: Parts) -> None:
    file = parts.save("one")
    await parts.sample("one")
    file.unlink()
    with pytest.raises(Refused, match=f"tinker://{MODEL_ID}/sampler_weights/one is gone: deleted or expired"):
        await parts.sample("one")


async def test_weights_that_are_not_finite_never_reach_vllm(parts: Parts) -> None:
    parts.save("bad", math.nan)
    with pytest.raises(Refused, match="weights are not finite"):
        await parts.sample("bad")
    assert not parts.fake.loads and not list((parts.files / "adapters").iterdir())
    os.utime(parts.save("bad"), ns=(1, 10**18))
    await parts.sample("bad")


@pytest.mark.parametrize("damage", ["no archive", "cut short", "changed"])
async def test_a_damaged_checkpoint_is_an_answer_and_not_a_request_that_is_never_answered(
    parts: Parts, damage: str
) -> None:
    file = parts.save("one")
    with tarfile.open(file) as archive:
        contents = {one.name: archive.extractfile(one).read() for one in archive}  # pyright: ignore[reportOptionalMemberAccess]
    archives.pack(file, contents)  # as the engine writes it
    data = bytearray(file.read_bytes())
    data[data.index(contents["adapter_model.safetensors"]) + 200] ^= 255
    file.write_bytes({"no archive": b"x" * 2048, "cut short": data[: len(data) // 2], "changed": data}[damage])
    with pytest.raises(Refused, match=r"sampler checkpoint one\.tar\.gz cannot be unpacked: \S+"):
        await parts.sample("one")
    assert not parts.fake.loads and not list((parts.files / "adapters").iterdir())


async def test_a_disk_without_a_place_for_an_adapter_is_an_answer(parts: Parts) -> None:
    parts.save("one")
    (parts.files / "adapters").touch()
    with pytest.raises(Refused, match=r"cannot be unpacked: .*(File exists|Not a directory)"):
        await parts.adapters.preload(MODEL_ID, "one")
    (parts.files / "adapters").unlink()
    assert (await parts.sample("one"))["sequences"], "once there is one"


async def test_a_refusal_has_vllms_message_and_is_final(parts: Parts) -> None:
    parts.fake.faults = [(400, "prompt is empty")]
    with pytest.raises(Refused, match="prompt is empty"):
        await parts.sample()
    assert len(parts.fake.asked) == 1


async def test_a_model_that_vllm_does_not_know_is_not_asked_for_without_a_pause(parts: Parts) -> None:
    parts.sampling.wait_sec = 0.2
    parts.fake.base_model = "another"
    with pytest.raises(Refused, match="no sample within 0 s: vLLM does not serve the model"):
        await parts.sample()
    assert len(parts.fake.asked) <= 20


async def test_an_aborted_answer_is_tried_again(parts: Parts) -> None:
    def abort(answer: dict[str, Any]) -> None:
        if len(parts.fake.asked) == 1:
            answer["choices"][0]["finish_reason"] = "abort"

    parts.fake.answer = abort
    assert (await parts.sample())["sequences"][0]["stop_reason"] == "stop"
    assert len(parts.fake.asked) == 2


@pytest.mark.parametrize("value", [math.nan, -math.inf])
async def test_logprobs_that_are_not_finite_are_an_error(parts: Parts, value: float) -> None:
    parts.fake.answer = lambda answer: answer["choices"][0].update(logprobs={"token_logprobs": [value]})
    with pytest.raises(Refused, match="not finite"):
        await parts.sample()


async def test_requests_in_flight_survive_a_death_of_vllm(parts: Parts) -> None:
    parts.save("one")
    await parts.sample("one")
    parts.fake.gate.clear()
    waiting = [asyncio.create_task(parts.sample(name)) for name in ("one", "", "one")]
    await parts.fake.arrivals(4)
    await parts.fake.stop()
    late = asyncio.create_task(parts.sample("one"))
    await asyncio.sleep(0.05)
    parts.fake.gate.set()
    await parts.fake.start()
    found = await asyncio.wait_for(asyncio.gather(*waiting, late), 600)
    assert len(found) == 4 and parts.fake.loads.count(parts.fake.loads[0]) == 2 and len(parts.lines) == 1


async def test_a_request_that_ends_vllm_each_time_is_given_up(parts: Parts) -> None:
    parts.fake.gate.clear()
    request = asyncio.create_task(parts.sample())
    for _ in range(vllm_sampling.MOST_LOST):
        await parts.fake.arrivals(1)
        await parts.fake.stop()
        await parts.fake.start()
    with pytest.raises(Refused, match="vLLM ended 3 times while it computed this request"):
        await asyncio.wait_for(request, 600)


async def test_a_request_that_ends_vllms_engine_each_time_is_given_up(parts: Parts) -> None:
    """vLLM's API answers 500, several times, before it ends too."""
    parts.fake.faults = [(500, "EngineCore encountered an issue.")] * 1000
    request = asyncio.create_task(parts.sample())
    for _ in range(vllm_sampling.MOST_LOST - 1):
        await parts.fake.arrivals(2)
        await parts.fake.stop()
        while not parts.sampling.servers[0].down:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await parts.fake.start()
    with pytest.raises(Refused, match=r"vLLM ended 3 times while it computed .* answers 500: EngineCore encountered"):
        await asyncio.wait_for(request, 600)


async def test_an_error_of_vllm_that_lives_is_no_end(parts: Parts) -> None:
    parts.fake.faults = [(500, "busy")] * (2 * vllm_sampling.MOST_LOST)
    assert (await parts.sample())["sequences"]


@pytest.mark.parametrize("status", [500, 502])
async def test_a_request_at_which_vllm_fails_for_ever_is_given_up_while_others_are_sampled(
    parts: Parts, status: int
) -> None:
    bad = dataclasses.replace(ASK, prompt=(6, 6, 6))
    parts.fake.poison = (list(bad.prompt), status)
    parts.save("one")
    with pytest.raises(Refused, match=rf"failed at this request 5 times and samples others \(.* answers {status}: "):
        await asyncio.wait_for(parts.sample("one", ask=bad), 600)
    assert (await parts.sample("one"))["sequences"]


@pytest.mark.parametrize("status", [429, 503])
async def test_a_request_for_which_vllm_has_no_room_is_tried_on(parts: Parts, status: int) -> None:
    bad = dataclasses.replace(ASK, prompt=(6, 6, 6))
    parts.fake.poison = (list(bad.prompt), status)
    request = asyncio.create_task(parts.sample(ask=bad))
    await parts.fake.arrivals(2 * vllm_sampling.MOST_FAILED + 1)
    parts.fake.poison = None
    assert (await asyncio.wait_for(request, 600))["sequences"]
    assert len(parts.lines) == 1, "one line, however often it fails"


async def test_requests_fail_with_the_log_when_the_supervisor_has_given_up(parts: Parts) -> None:
    await parts.fake.stop()
    status = {"url": parts.fake.url, "state": "given up", "deaths": 3, "cause": "ValueError: no", "log": "/x/vllm.log"}
    parts.status.write_text(json.dumps([status]))
    with pytest.raises(Refused, match=r"does not run; it ended 3 times \(ValueError: no\), its log: /x/vllm.log$"):
        await parts.sample()


@replicas(2)
async def test_the_other_replica_samples_while_one_is_away(parts: Parts) -> None:
    parts.save("one")
    await parts.adapters.preload(MODEL_ID, "one")
    await parts.fakes[1].stop()
    await asyncio.gather(*(parts.sample("one") for _ in range(8)))
    assert parts.fake.asked and parts.sampling.state()["replicas"][0] == "ready"
    await parts.fakes[1].start()
    await asyncio.wait_for(parts.sampling.servers[1].coming(), 600)
    assert parts.sampling.state()["replicas"] == ["ready", "ready"]


async def test_clean_up_at_the_start_forgets_what_a_killed_server_left(parts: Parts) -> None:
    parts.fake.registered["old"] = "/nowhere"
    old = parts.files / "adapters" / "old"
    old.mkdir(parents=True)
    await parts.adapters.clean()
    assert not parts.fake.registered and not old.exists()
    await parts.fake.stop()
    await parts.adapters.clean()


async def test_a_url_may_have_a_path() -> None:
    asked = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        server = Vllm(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/here", KEY)
        assert await server.is_healthy()
        await server.close()
    assert asked == [b"GET /here/health HTTP/1.1\r\n"]
