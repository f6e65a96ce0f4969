"""A Tinker service that records requests, and sequences for it."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import tinker

from harbortrainer.backend.connect import Api, Backend
from harbortrainer.backend.contract import CLOUD, TINKER_DOCUMENTS, CallLimits
from harbortrainer.config import Config
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.policy.chat_template import BaseModel


class Answer:
    """A future of the SDK."""

    def __init__(self, log: list[str], name: str, value: Any) -> None:
        self.log, self.name, self.value = log, name, value

    def __await__(self):
        return self.result_async().__await__()

    async def result_async(self) -> Any:
        self.log.append(f"await {self.name}")
        await asyncio.sleep(0)
        return self.value


class FakeTinker:
    """Service, training, sampling and REST client in one."""

    model_id = "model_1"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.logprobs = [-0.5, -0.5, -0.5, -0.5]
        self.base_logprobs: list[float | None] = [None, -1.0, -2.0, -3.0, -4.0]
        self.weights = SimpleNamespace(base_model="m", lora_rank=32)
        self.listed: list[Any] = []

    async def create_lora_training_client(self, model: str, rank: int, seed: int, train_unembed: bool):
        assert not train_unembed  # one meaning on every server
        self.log.append(f"create {model} {rank} {seed}")
        return self

    async def create_training_client_from_state_with_optimizer(self, path: str):
        self.log.append(f"load {path}")
        return self

    async def create_training_client_from_state(self, path: str):
        self.log.append(f"load without optimizer {path}")
        return self

    def get_weights_info_by_tinker_path(self, path: str):
        return Answer(self.log, "weights_info", self.weights)

    async def create_sampling_client(self, model_path: str | None = None, base_model: str | None = None):
        self.log.append(f"sampler {model_path or base_model}")
        return self

    async def compute_logprobs(self, prompt: tinker.ModelInput):
        return self.base_logprobs

    def forward_backward(self, datums: Any, loss_fn: str, loss_fn_config: Any):
        self.log.append(f"submit forward_backward {loss_fn} {loss_fn_config}")
        outputs = [{"logprobs": tinker.TensorData.from_numpy(np.array(self.logprobs, np.float32))} for _ in datums]
        return Answer(self.log, "forward_backward", SimpleNamespace(loss_fn_outputs=outputs, metrics={"loss:sum": 2.0}))

    def optim_step(self, adam: tinker.AdamParams):
        self.log.append("submit optim_step")
        return Answer(self.log, "optim_step", SimpleNamespace(metrics={"skyrl.ai/grad_norm": 3.0}))

    def save_weights_for_sampler(self, name: str):
        return Answer(self.log, "save", SimpleNamespace(path=f"tinker://model_1/sampler_weights/{name}"))

    def save_state(self, name: str):
        return Answer(self.log, "save", SimpleNamespace(path=f"tinker://model_1/weights/{name}"))

    async def list_checkpoints(self, model_id: str):
        return SimpleNamespace(checkpoints=self.listed)

    async def delete_checkpoint_from_tinker_path(self, path: str):
        self.log.append(f"delete {path}")

    async def close(self, status: str) -> None: ...


CONFIG = Config(model_name="m", tasks_dir="d", seed=7)


class Reaches(Api):
    """Opens sessions with this service alone. Models have small vocabularies."""

    def __init__(self, service: tinker.ServiceClient) -> None:
        self._service = service

    def base_model(self, name: str) -> BaseModel:
        return BaseModel(vocab_size=100)

    async def service(self, url: str, key: str) -> tinker.ServiceClient:
        return self._service


def backend(fake: FakeTinker) -> Backend:
    service, rest = cast(tinker.ServiceClient, fake), cast(tinker.RestClient, fake)
    return Backend(
        service, rest, CLOUD, TINKER_DOCUMENTS, "http://127.0.0.1:9", None, CallLimits(), api=Reaches(service)
    )


def sequence() -> TrainingSequence:
    mask = np.array([False, False, False, True, True])
    values = np.where(mask, -0.5, 0).astype(np.float32)
    return TrainingSequence("t", np.arange(5, dtype=np.int32), mask, values, values)
