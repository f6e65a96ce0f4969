"""A session of temporary adapters on a server, and chains of training steps on them. All that it makes is removed."""

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import tinker

from harbortrainer.backend.faults import SDK_ERRORS, awaited, plain
from harbortrainer.backend.sessions import Session
from harbortrainer.errors import BackendError

RANK, SEED = 4, 1
CALL_LIMIT_SEC = 180.0  # the first call of a shape compiles
HTTP_TIMEOUT_SEC = 15.0

log = logging.getLogger("harbortrainer")


class ProbeSession:
    """`rate`: of a plain gradient step that raises the summed logprob of TOKENS by about one nat; 0 = not measured."""

    def __init__(self, session: Session, model_name: str) -> None:
        self.service, self.rest, self.url, self.model_name = session.service, session.rest, session.url, model_name
        self.rank = RANK
        headers = {"X-API-Key": session.key}
        self.http = httpx.AsyncClient(base_url=f"{self.url}/api/v1", timeout=HTTP_TIMEOUT_SEC, headers=headers)
        self.rate = 0.0
        self._run = secrets.token_hex(4)
        self._models: list[str] = []
        self._paths: list[str] = []

    async def wait[T](self, what: str, work: Awaitable[T]) -> T:
        """Raises BackendError, one line, when the server refuses or does not answer."""
        return await awaited(what, work, CALL_LIMIT_SEC)

    async def adapter(self) -> tinker.TrainingClient:
        """A fresh adapter, always from the same seed. Raises BackendError."""
        making = self.service.create_lora_training_client(self.model_name, rank=self.rank, seed=SEED)
        client = await self.wait("creating an adapter", making)
        self._models.append(client.model_id)
        return client

    async def published(self, client: tinker.TrainingClient, label: str) -> str:
        """Save sampler weights under a name that is unique to this probe. Returns their path."""
        saving = client.save_weights_for_sampler(f"probe-{self._run}-{label}")
        path = (await self.wait("save_weights_for_sampler", saving)).path
        # sampler paths of the stock server lack a part that the SDK's delete wants
        head, _, name = path.rpartition("/")
        self._paths.append(path if head.endswith("weights") else f"{head}/sampler_weights/{name}")
        return path

    async def sampler(self, path: str) -> tinker.SamplingClient:
        creating = self.service.create_sampling_client(model_path=path)
        return await self.wait("creating a sampling client", creating)

    async def release(self, client: tinker.TrainingClient) -> None:
        """Free an adapter's slot."""
        if client.model_id in self._models:
            self._models.remove(client.model_id)
            await self._unload(client.model_id)

    async def close(self) -> None:
        """Unload the remaining models and delete the checkpoints."""
        for path in self._paths:
            try:
                await asyncio.wait_for(self.rest.delete_checkpoint_from_tinker_path(path), HTTP_TIMEOUT_SEC)
            except (TimeoutError, *SDK_ERRORS) as error:
                log.warning("probe: could not delete %s: %s", path, error)
        for model_id in self._models:
            await self._unload(model_id)
        await self.http.aclose()

    async def _unload(self, model_id: str) -> None:
        """Unload without the SDK, which would retry on a failing server for minutes."""
        body = {"model_id": model_id, "type": "unload_model"}
        try:
            promise = (await self.http.post("unload_model", json=body)).raise_for_status().json()
            await self.http.post("retrieve_future", json={"request_id": promise["request_id"]})
        except (httpx.HTTPError, ValueError, KeyError) as error:
            log.warning("probe: could not unload %s: %s", model_id, error or type(error).__name__)


EPS = 1e5  # far above any element of a gradient
N_TOKENS = 25
N_TARGETS = N_TOKENS - 1  # in training
PROMPT_TOKENS = 17
NEW_TOKENS = N_TOKENS - PROMPT_TOKENS  # so that prompt and answer together are as long as the rest
LOW_ID, HIGH_ID = 20, 220


def tokens_of(seed: int) -> list[int]:
    """N_TOKENS ids, the same on every machine for one seed."""
    return np.random.default_rng(seed).integers(LOW_ID, HIGH_ID, N_TOKENS).tolist()


TOKENS = tokens_of(0)
PROMPT = tinker.ModelInput.from_ints(TOKENS[:PROMPT_TOKENS])
SEQUENCE = tinker.ModelInput.from_ints(TOKENS)


def datum(tokens: Sequence[int] = TOKENS, **inputs: Sequence[float]) -> tinker.Datum:
    """A datum tokens[:-1] -> tokens[1:] with these inputs of the loss."""
    tensors = {name: tinker.TensorData(data=list(values), dtype="float32") for name, values in inputs.items()}
    tensors["target_tokens"] = tinker.TensorData(data=list(tokens[1:]), dtype="int64")
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(list(tokens[:-1])), loss_fn_inputs=tensors)


def weighted(weight: float = 1.0, tokens: Sequence[int] = TOKENS) -> tinker.Datum:
    """A datum for cross_entropy, with the same weight for every target."""
    return datum(tokens, weights=[weight] * (len(tokens) - 1))


def sgd(rate: float, **changes: float) -> tinker.AdamParams:
    """Plain gradient descent with this rate."""
    return adam(**({"learning_rate": rate * EPS, "eps": EPS} | changes))


def adam(learning_rate: float, eps: float = 1e-12, **changes: float) -> tinker.AdamParams:
    """Adam without memory unless `changes` add it."""
    return tinker.AdamParams(**({"learning_rate": learning_rate, "beta1": 0.0, "beta2": 0.0, "eps": eps} | changes))


@dataclass(frozen=True, slots=True)
class TrainStep:
    """Calls of forward_backward, then an optimizer step. The first datum of the first call must be of TOKENS."""

    optimizer: tinker.AdamParams
    calls: tuple[tuple[tinker.Datum, ...], ...] = ((weighted(),),)
    loss_fn: Any = "cross_entropy"


def idle(optimizer: tinker.AdamParams) -> TrainStep:
    """A step whose gradient is exactly 0: all advantages are."""
    still = datum(TOKENS, logprobs=[-1.0] * N_TARGETS, advantages=[0.0] * N_TARGETS)
    return TrainStep(optimizer, ((still,),), "importance_sampling")


@dataclass(frozen=True, slots=True)
class SgdChain:
    """`totals`: summed logprob before each step and after the last. `grad_norms`: as reported, or None."""

    totals: tuple[float, ...]
    grad_norms: tuple[float | None, ...]
    logprobs: tuple[float, ...]  # after the last step, one for each target

    @property
    def gains(self) -> tuple[float, ...]:
        return tuple(after - before for before, after in zip(self.totals, self.totals[1:], strict=False))


async def run_chain(client: tinker.TrainingClient, steps: Sequence[TrainStep] = ()) -> SgdChain:
    """Take the steps; all requests are sent before any is awaited. Raises BackendError when one fails."""
    firsts, others, stepped = [], [], []
    for step in steps:
        passes = [client.forward_backward(list(call), step.loss_fn) for call in step.calls]
        firsts.append(passes[0])
        others += passes[1:]
        stepped.append(client.optim_step(step.optimizer))
    last = client.forward([weighted()], "cross_entropy")
    results = await _all([*firsts, last, *stepped, *others])
    outputs, metrics = results[: len(steps) + 1], results[len(steps) + 1 : 2 * len(steps) + 1]
    logprobs = [[float(value) for value in output.loss_fn_outputs[0]["logprobs"].data] for output in outputs]
    return SgdChain(
        tuple(map(math.fsum, logprobs)), tuple(_norm(m.metrics or {}) for m in metrics), tuple(logprobs[-1])
    )


async def total(client: tinker.TrainingClient) -> float:
    """The summed logprob of TOKENS under the weights in training; changes nothing."""
    return (await run_chain(client)).totals[-1]


async def _all(futures: Sequence[Any]) -> list[Any]:
    """Await all; CALL_LIMIT_SEC is for each next answer: on a slow machine a chain takes minutes."""
    tasks = [asyncio.ensure_future(future) for future in futures]
    try:
        for task in tasks:
            done, _ = await asyncio.wait({task}, timeout=CALL_LIMIT_SEC)
            if not done:
                raise BackendError(f"training: no answer within {CALL_LIMIT_SEC:.0f} s")
    finally:
        for task in tasks:
            task.cancel()
    for error in [task.exception() for task in tasks]:
        if isinstance(error, SDK_ERRORS):
            raise BackendError(f"training: {plain(error)}")
    return [task.result() for task in tasks]


def _norm(metrics: dict[str, float]) -> float | None:
    return next((value for name, value in metrics.items() if name.rsplit("/", 1)[-1] == "grad_norm"), None)


def summed_loss(output: tinker.ForwardBackwardOutput) -> float | None:
    """The reported loss, summed over all datums; None where none is reported."""
    parts = [one.get("elementwise_loss") for one in output.loss_fn_outputs]
    if all(part is not None for part in parts):
        return math.fsum(float(value) for part in parts if part is not None for value in part.data)
    return output.metrics.get("loss:sum")
