"""A session of temporary adapters on a server, and chains of training steps on them. All that it makes is removed."""

import asyncio
import itertools
import logging
import math
import secrets
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import tinker

from harbortrainer.backend.contract import KEY_HEADER
from harbortrainer.backend.faults import awaited, plain, sdk_errors
from harbortrainer.backend.http import http_client
from harbortrainer.backend.sessions import Session
from harbortrainer.errors import BackendError

RANK, SEED = 4, 1
MOST_FASTER = 10.0
CALL_LIMIT_SEC = 180.0  # the first call of a shape compiles
HTTP_TIMEOUT_SEC = 15.0

log = logging.getLogger("harbortrainer")


class ProbeSession:
    """A session's temporary adapters and checkpoints, and what later measurements need of earlier ones.

    `rate`: of a plain gradient step that raises the summed logprob of TOKENS by about one nat; 0 = not measured.
    `rate_norm2`: that rate times the squared norm of the gradient; 0 = the server reports no norms.
    `noise`: nats by which such gains scatter; `token_noise`: of the logprob of one token, as a mean, where weights
    hardly move. `repeats`: steps in a row whose gain noise does not hide. `sign_rate`: of a step with a tiny eps that
    gains about a nat; 0 = none does. `client`: the adapter in use.
    """

    def __init__(self, session: Session, model_name: str) -> None:
        self.service, self.rest, self.url, self.model_name = session.service, session.rest, session.url, model_name
        self.rank = RANK
        headers = {KEY_HEADER: session.key}
        self.http = http_client(HTTP_TIMEOUT_SEC, headers, f"{self.url}/api/v1")
        self.rate_norm2 = 0.0
        self._norm: float | None = None  # of the gradient where the adapter in use is
        self.rate = self.noise = self.token_noise = 0.0
        self.sign_rate = 0.0
        self.repeats = 1
        self._client: tinker.TrainingClient | None = None
        self._run = secrets.token_hex(4)
        self._models: list[str] = []
        self._paths: list[str] = []

    async def wait[T](self, what: str, work: Awaitable[T]) -> T:
        """Raises BackendError, one line, when the server refuses or does not answer."""
        return await awaited(what, work, CALL_LIMIT_SEC)

    @property
    def client(self) -> tinker.TrainingClient:
        assert self._client is not None, "renew comes first"
        return self._client

    async def renew(self) -> None:
        """Put a fresh adapter, always of the same seed, in the place of the one in use: steps gain more there.

        Raises BackendError.
        """
        if self._client is not None:
            await self.release(self._client)
        making = self.service.create_lora_training_client(self.model_name, rank=self.rank, seed=SEED)
        self._client = await self.wait("creating an adapter", making)
        self._models.append(self._client.model_id)

    async def run(self, steps: "Sequence[TrainStep]" = ()) -> "SgdChain":
        """`run_chain` of the adapter in use."""
        chain = await run_chain(self.client, steps)
        self._norm = chain.norms_at[-1]
        return chain

    @property
    def tuned(self) -> float:
        """The rate of a step of about one nat where the last `run` ended, by the reported norm; else `rate`."""
        if not (self.rate_norm2 and self._norm):
            return self.rate
        return min(self.rate_norm2 / self._norm**2, MOST_FASTER * self.rate)  # a norm is near 0 where little is left

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
            except (TimeoutError, *sdk_errors()) as error:
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
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            log.warning("probe: adapter %s stays on the server: it answers %d to POST unload_model", model_id, status)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            log.warning("probe: could not unload %s: %s", model_id, str(error) or type(error).__name__)


EPS = 1e5  # far above any element of a gradient
N_TOKENS = 25
N_TARGETS = N_TOKENS - 1  # in training
PROMPT_TOKENS = 17
NEW_TOKENS = N_TOKENS - PROMPT_TOKENS  # so that prompt and answer together are as long as the rest
LOW_ID, HIGH_ID = 20, 220


def tokens_of(seed: int) -> list[int]:
    """Return N_TOKENS ids, the same on every machine for one seed."""
    return np.random.default_rng(seed).integers(LOW_ID, HIGH_ID, N_TOKENS).tolist()


TOKENS = tokens_of(0)
PROMPT = tinker.ModelInput.from_ints(TOKENS[:PROMPT_TOKENS])
SEQUENCE = tinker.ModelInput.from_ints(TOKENS)


def datum(tokens: Sequence[int] = TOKENS, **inputs: Sequence[float]) -> tinker.Datum:
    """Return a datum tokens[:-1] -> tokens[1:] with these inputs of the loss."""
    tensors = {name: tinker.TensorData(data=list(values), dtype="float32") for name, values in inputs.items()}
    tensors["target_tokens"] = tinker.TensorData(data=list(tokens[1:]), dtype="int64")
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(list(tokens[:-1])), loss_fn_inputs=tensors)


def weighted(weight: float = 1.0, tokens: Sequence[int] = TOKENS) -> tinker.Datum:
    """Return a datum for cross_entropy, with the same weight for every target."""
    return datum(tokens, weights=[weight] * (len(tokens) - 1))


def pair(weight: float = 1.0) -> tuple[tinker.Datum, ...]:
    """Return one call's data: TOKENS twice, each target with half the weight.

    Every call has two datums of one length, since a server compiles a program for each size.
    """
    return (weighted(weight / 2), weighted(weight / 2))


def sgd(rate: float, **changes: float) -> tinker.AdamParams:
    """Return plain gradient descent with this rate."""
    return adam(**({"learning_rate": rate * EPS, "eps": EPS} | changes))


def adam(learning_rate: float, eps: float = 1e-12, **changes: float) -> tinker.AdamParams:
    """Return Adam without memory unless `changes` add it."""
    return tinker.AdamParams(**({"learning_rate": learning_rate, "beta1": 0.0, "beta2": 0.0, "eps": eps} | changes))


@dataclass(frozen=True, slots=True)
class TrainStep:
    """Calls of forward_backward, then an optimizer step. The first datum of the first call must be of TOKENS."""

    optimizer: tinker.AdamParams
    calls: tuple[tuple[tinker.Datum, ...], ...] = (pair(),)
    loss_fn: Any = "cross_entropy"


def idle(optimizer: tinker.AdamParams) -> TrainStep:
    """Return a step whose gradient is exactly 0: all advantages are."""
    still = datum(TOKENS, logprobs=[-1.0] * N_TARGETS, advantages=[0.0] * N_TARGETS)
    return TrainStep(optimizer, ((still, still),), "importance_sampling")


@dataclass(frozen=True, slots=True)
class SgdChain:
    """What the server computed before each step and after the last. `norms_at`: of the gradient, as reported."""

    logprobs_at: tuple[tuple[float, ...], ...]  # one for each target of TOKENS
    norms_at: tuple[float | None, ...]

    @property
    def grad_norms(self) -> tuple[float | None, ...]:
        """Of the steps."""
        return self.norms_at[:-1]

    @property
    def logprobs(self) -> tuple[float, ...]:
        """After the last step, one for each target."""
        return self.logprobs_at[-1]

    @property
    def totals(self) -> tuple[float, ...]:
        """Summed logprob before each step and after the last."""
        return tuple(map(math.fsum, self.logprobs_at))

    @property
    def gains(self) -> tuple[float, ...]:
        return tuple(after - before for before, after in itertools.pairwise(self.totals))


async def run_chain(client: tinker.TrainingClient, steps: Sequence[TrainStep] = ()) -> SgdChain:
    """Take the steps, then read the logprobs once more. Raises BackendError when a request fails.

    Requests are sent before earlier ones are awaited, but for the calls of a step with several: a server may compute
    those that wait together, which would be another size. The last reading is a training pass, too, whose gradient is
    dropped by a step with rate 0: no other program is compiled for it.
    """
    firsts, others, stepped = [], [], []
    for step in (*steps, TrainStep(adam(0.0))):
        passes = []
        for call in step.calls:
            passes.append(client.forward_backward(list(call), step.loss_fn))
            if len(step.calls) > 1:
                await _all(passes[-1:])
        firsts.append(passes[0])
        others += passes[1:]
        stepped.append(client.optim_step(step.optimizer))
    results = await _all([*firsts, *stepped, *others])
    outputs, metrics = results[: len(firsts)], results[len(firsts) : 2 * len(firsts)]
    logprobs = (tuple(float(value) for value in output.loss_fn_outputs[0]["logprobs"].data) for output in outputs)
    return SgdChain(tuple(logprobs), tuple(_norm(m.metrics or {}) for m in metrics))


async def drop_gradient(session: ProbeSession, client: tinker.TrainingClient) -> None:
    """Forget what passes have added to the gradient. Raises BackendError."""
    await session.wait("optim_step", client.optim_step(adam(0.0)))


async def total(client: tinker.TrainingClient) -> float:
    """Return the summed logprob of TOKENS under the weights in training; changes nothing."""
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
        if isinstance(error, sdk_errors()):
            raise BackendError(f"training: {plain(error)}")
    return [task.result() for task in tasks]


def _norm(metrics: dict[str, float]) -> float | None:
    return next((value for name, value in metrics.items() if name.rsplit("/", 1)[-1] == "grad_norm"), None)


def summed_loss(output: tinker.ForwardBackwardOutput) -> float | None:
    """Return the reported loss, summed over all datums; None where none is reported."""
    parts = [one.get("elementwise_loss") for one in output.loss_fn_outputs]
    if all(part is not None for part in parts):
        return math.fsum(float(value) for part in parts if part is not None for value in part.data)
    return output.metrics.get("loss:sum")
