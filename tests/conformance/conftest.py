"""The clients that the conformance tests share.

TINKER_CONFORMANCE_URL=URL runs them against a server that is already there, TINKER_CONFORMANCE_MODEL names the base
model where it serves several.
"""

import os
from collections.abc import Callable, Iterator

import httpx
import pytest
import tinker

from harbortrainer.backend.sessions import DUMMY_KEY

from .parts import LIMIT_SEC, RANK, settled

type MakeClient = Callable[[], tinker.TrainingClient]


@pytest.fixture(scope="session")
def server_url(request: pytest.FixtureRequest) -> str:
    return os.environ.get("TINKER_CONFORMANCE_URL") or request.getfixturevalue("server_url")


@pytest.fixture(scope="session")
def service(server_url: str) -> Iterator[tinker.ServiceClient]:
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    yield tinker.ServiceClient(base_url=server_url, api_key=DUMMY_KEY)


@pytest.fixture(scope="session")
def rest(server_url: str) -> tinker.RestClient:
    return tinker.RestClient(base_url=server_url, api_key=DUMMY_KEY)


@pytest.fixture(scope="session")
def base_model(rest: tinker.RestClient) -> str:
    served = [model.model_name for model in settled(rest.get_server_capabilities()).supported_models]
    return os.environ.get("TINKER_CONFORMANCE_MODEL") or next(name for name in served if name)


@pytest.fixture(scope="session")
def unload(server_url: str) -> Callable[[tinker.TrainingClient], httpx.Response]:
    """Gives an adapter's slot back and returns the answer; the SDK has no call for it."""

    def post(client: tinker.TrainingClient) -> httpx.Response:
        with httpx.Client(base_url=f"{server_url}/api/v1", timeout=LIMIT_SEC) as http:
            promise = http.post("/unload_model", json={"model_id": client.model_id})
            if promise.status_code != 200:
                return promise
            return http.post("/retrieve_future", json={"request_id": promise.json()["request_id"]})

    return post


@pytest.fixture(scope="session")
def training(service: tinker.ServiceClient, base_model: str, unload) -> Iterator[tinker.TrainingClient]:
    """One adapter for the tests that measure changes, whatever state they find."""
    client = settled(service.create_lora_training_client(base_model, rank=RANK, seed=0))
    yield client
    unload(client)


@pytest.fixture
def fresh(service: tinker.ServiceClient, base_model: str, unload) -> Iterator[MakeClient]:
    """Makes adapters that start from the same weights; unloads them after the test."""
    made: list[tinker.TrainingClient] = []

    def make() -> tinker.TrainingClient:
        made.append(settled(service.create_lora_training_client(base_model, rank=RANK, seed=1)))
        return made[-1]

    yield make
    for client in made:
        unload(client)


@pytest.fixture(scope="session")
def base_sampler(service: tinker.ServiceClient, base_model: str) -> tinker.SamplingClient:
    return settled(service.create_sampling_client(base_model=base_model))
