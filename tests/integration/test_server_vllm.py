"""The real server with SAMPLER=vllm and a fake vLLM: rows, seeds, refusals, saves, restarts. The real one: at night."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tinker.proto.response_conv import deserialize_sample_response

from harbortrainer.probe.probe import identify
from repairs.handover import MOST
from tests.conftest import MODEL, free_port, run_script
from tests.support.fake_vllm import KEY, FakeVllm, in_a_thread
from tests.support.server_parts import Raw, awaited, refused
from tests.support.small_disk import small_disk
from tests.support.small_server import Server

Call = Callable[[Callable[[], Any]], Any]


@pytest.fixture(scope="module")
def vllm() -> Iterator[tuple[FakeVllm, Call]]:
    with in_a_thread(str(MODEL)) as made:
        yield made


@pytest.fixture(scope="module")
def server(vllm: tuple[FakeVllm, Call], server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"SAMPLER": "vllm", "VLLM_URLS": vllm[0].url, "VLLM_API_KEY": KEY, "SESSION_TIMEOUT": "600"}
    server = Server(tmp_path_factory.mktemp("vllm"), **settings)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def raw(server: Server) -> Iterator[Raw]:
    raw = Raw(server.url, MODEL)
    yield raw
    raw.unload()


def save(raw: Raw, model_id: str, name: str) -> httpx.Response:
    return raw.settle(raw.post("save_weights_for_sampler", model_id=model_id, path=name))


def sample_of(raw: Raw, model_id: str, name: str, **params: Any) -> httpx.Response:
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}
    path = f"tinker://{model_id}/sampler_weights/{name}"
    settings = {"max_tokens": 4} | params
    return raw.post("asample", model_path=path, prompt=prompt, sampling_params=settings)


def test_samples_are_vllms_and_a_seed_goes_there_only_if_given(raw: Raw, vllm: tuple[FakeVllm, Call]) -> None:
    fake, _ = vllm
    before = len(fake.asked)
    for seed in ({}, {"seed": 0}):
        raw.settle(raw.sample([1, 2, 3], max_tokens=4, **seed)).raise_for_status()
    plain, seeded = fake.asked[before:]
    assert "seed" not in plain and seeded["seed"] == 0 and plain["model"] == str(MODEL)


def test_more_samples_at_once_than_the_database_has_connections(raw: Raw) -> None:
    with ThreadPoolExecutor(64) as clients:
        answers = clients.map(lambda _: raw.settle(raw.sample([1, 2, 3], max_tokens=4)), range(200))
        assert all(answer.is_success for answer in answers)


def test_a_prompt_is_scored_by_the_trainers_engine(raw: Raw, vllm: tuple[FakeVllm, Call]) -> None:
    before = len(vllm[0].asked)
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}
    scoring = {"base_model": str(MODEL), "prompt": prompt, "prompt_logprobs": True}
    raw.settle(raw.post("asample", **scoring, sampling_params={"max_tokens": 1})).raise_for_status()
    assert len(vllm[0].asked) == before
    long = {"chunks": [{"type": "encoded_text", "tokens": [1] * 1025}]}
    refused(
        raw.post("asample", **scoring | {"prompt": long}, sampling_params={"max_tokens": 2}),
        "prompt_logprobs with max_tokens=2",
        "at most 1024 tokens",
    )


def test_the_likeliest_tokens_of_a_prompt_come_from_both(raw: Raw, vllm: tuple[FakeVllm, Call]) -> None:
    fake, before = vllm[0], len(vllm[0].asked)
    place = {"2": {"logprob": -1.0}, "3": {"logprob": -2.0}, "9": {"logprob": -0.1}}
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}
    asked = {"prompt_logprobs": True, "topk_prompt_logprobs": 2, "prompt_logprobs_last_n": 1}
    stock, fake.answer = fake.answer, lambda answer: answer["choices"][0].update(prompt_logprobs=[None, place, place])
    try:
        for new, by_vllm in ((1, False), (4, True)):
            settings = {"base_model": str(MODEL), "prompt": prompt, "sampling_params": {"max_tokens": new}}
            answer = raw.settle(raw.post("asample", **settings, **asked)).raise_for_status()
            assert (len(fake.asked) > before) is by_vllm
            found = deserialize_sample_response(answer.content)
            scores, likeliest = found.prompt_logprobs or [], found.topk_prompt_logprobs or []
            assert scores[:2] == likeliest[:2] == [None, None]
            assert len(likeliest[2] or ()) == 2 and (scores[2] or 0) < 0
    finally:
        fake.answer = stock


def test_a_reference_stays_with_the_engine_while_others_are_saved(raw: Raw, server: Server) -> None:
    """It was read from its file at each step."""
    model_id = raw.adapter()
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}
    path = f"tinker://{model_id}/sampler_weights/reference"
    for number in range(3):
        save(raw, model_id, f"step-{number}" if number else "reference").raise_for_status()
        scored = raw.post(
            "asample", model_path=path, prompt=prompt, prompt_logprobs=True, sampling_params={"max_tokens": 1}
        )
        raw.settle(scored).raise_for_status()
    said = (server.state / "server.log").read_text()
    assert said.count("Loaded sampler checkpoint") <= 1


def test_a_saved_sampler_is_in_vllm_before_its_first_sample(raw: Raw, vllm: tuple[FakeVllm, Call]) -> None:
    fake, _ = vllm
    model_id = raw.adapter()
    save(raw, model_id, "one").raise_for_status()
    [name] = [name for name in fake.loads if name.startswith(f"{model_id}_one_")]
    raw.settle(sample_of(raw, model_id, "one")).raise_for_status()
    assert fake.asked[-1]["model"] == name and fake.loads.count(name) == 1
    checkpoint = f"training_runs/{model_id}/checkpoints/sampler_weights/one"
    assert raw.http.delete(f"/{checkpoint}").is_success
    refused(sample_of(raw, model_id, "one"), "one")
    save(raw, model_id, "one").raise_for_status()
    raw.settle(sample_of(raw, model_id, "one")).raise_for_status()
    assert fake.asked[-1]["model"] != name, "other weights, other name"


def test_a_sampler_that_vllm_refuses_is_an_error_of_its_save(raw: Raw, vllm: tuple[FakeVllm, Call]) -> None:
    model_id = raw.adapter()
    vllm[0].refuse_adapters = "LoRA rank 8 is greater than max_lora_rank 1."
    try:
        refused(save(raw, model_id, "refused"), "vLLM refuses the adapter", "max_lora_rank 1")
    finally:
        vllm[0].refuse_adapters = ""


ROOM = 128 * 1024  # bytes: less than an archive


def counts(server: Server) -> tuple[int, int]:
    """Adapters that the API took over from the engine, and those that it unpacked."""
    found = httpx.get(f"{server.url}/api/v1/healthz", timeout=60).json()["sampler"]
    return found["taken_over"], found["unpacked"]


def test_the_engine_hands_a_sampler_over(raw: Raw, server: Server, vllm: tuple[FakeVllm, Call]) -> None:
    model_id, (taken, unpacked) = raw.adapter(), counts(server)
    save(raw, model_id, "fast").raise_for_status()
    assert counts(server) == (taken + 1, unpacked)
    [folder] = [Path(path) for name, path in vllm[0].registered.items() if name.startswith(f"{model_id}_fast_")]
    assert folder.parent.name == "handed" and (folder / "adapter_model.safetensors").exists()
    strays = [folder.parent / f"stray{number}" for number in range(MOST)]
    for stray in strays:
        stray.mkdir()
    save(raw, model_id, "slow").raise_for_status()
    for stray in strays:
        stray.rmdir()
    assert counts(server) == (taken + 1, unpacked + 1), "no room: from its archive"
    raw.settle(sample_of(raw, model_id, "slow")).raise_for_status()


def test_a_save_that_fails_after_its_hand_over_is_sampled_by_nobody(
    raw: Raw, server: Server, vllm: tuple[FakeVllm, Call]
) -> None:
    model_id, (taken, _) = raw.adapter(), counts(server)
    with small_disk(64) as disk:
        folder = server.state / "checkpoints" / model_id / "sampler_weights"
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.symlink_to(disk.folder)
        disk.fill(but=ROOM)
        refused(save(raw, model_id, "one"), "No space left on device")
        awaited(lambda: counts(server)[0] == taken + 1 or None)
        [failed] = [name for name in vllm[0].loads if name.startswith(f"{model_id}_one_")]
        refused(sample_of(raw, model_id, "one"))
        disk.empty()
        save(raw, model_id, "one").raise_for_status()
        raw.settle(sample_of(raw, model_id, "one")).raise_for_status()
        assert vllm[0].asked[-1]["model"] not in (failed, str(MODEL))


async def test_the_cached_contract_knows_the_sampler(server: Server) -> None:
    async with httpx.AsyncClient(timeout=600) as http:
        body = (await http.get(f"{server.url}/api/v1/healthz")).json()
    assert body["sampler"]["kind"] == "vllm" and body["sampler"]["version"] == "0.0.fake"
    assert body["sampler"]["replicas"] == ["ready"]
    identity = await identify(server.url)
    assert identity.server["sampler"] == {"kind": "vllm", "version": "0.0.fake", "replicas": 1}


@pytest.mark.nightly
def test_samples_in_flight_survive_a_kill_of_the_server(raw: Raw, server: Server, vllm: tuple[FakeVllm, Call]) -> None:
    """The last test: it starts the server again. With the JAX sampler: test_server_upkeep."""
    fake, call = vllm
    model_id = raw.adapter()
    save(raw, model_id, "kept").raise_for_status()
    before = len(fake.asked)
    call(fake.gate.clear)
    waiting = [sample_of(raw, model_id, "kept"), raw.sample([1, 2], max_tokens=2)]
    awaited(lambda: len(fake.asked) >= before + 2 or None)
    server.kill()
    server.start()
    assert not [name for name in fake.registered if name not in fake.loads[-1:]], "the old names are unloaded"
    with ThreadPoolExecutor() as clients:
        answers = [clients.submit(raw.settle, promise) for promise in waiting]
        awaited(lambda: len(fake.asked) >= before + 4 or None)
        call(fake.gate.set)
        assert all(answer.result().is_success for answer in answers)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"SAMPLER": "sglang"}, "SAMPLER=sglang: jax or vllm"),
        ({"SAMPLER": "vllm", "VLLM_GPUS": "1", "JAX_PLATFORMS": "cpu"}, "VLLM_GPUS=1: this server runs on the CPU"),
        (
            {"SAMPLER": "vllm", "VLLM_CPU_REPLICAS": "0", "JAX_PLATFORMS": "cpu"},
            "VLLM_CPU_REPLICAS=0: must be a whole number, 1 or more",
        ),
    ],
)
def test_a_wrong_sampler_is_one_line(env: dict[str, str], words: str, tmp_path: Path, server_env: None) -> None:
    own = {"SKYRL_TX_STATE": str(tmp_path), "SKYRL_TX_PORT": str(free_port())}
    done = run_script("scripts/start_skyrl_tx.sh", MODEL, env=env | own)
    assert done.returncode == 1
    missing = "the environment server/vllm/.venv is missing"
    assert words in done.stdout or missing in done.stdout
    assert len(done.stdout.strip().splitlines()) == 1
