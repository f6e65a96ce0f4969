"""Chains of optimizer steps, and how far each moves the logprob of the same tokens.

A very large eps and no memory (beta1 = beta2 = 0) make Adam plain gradient descent with the rate learning_rate / eps:
each step's gain is then linear in the gradient that the server made of the data, whatever it reports.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinker

from src.backend.faults import SDK_ERRORS, plain
from src.errors import BackendError
from src.probe.bench import CALL_LIMIT_SEC
from src.probe.data import still, weighted

EPS = 1e5  # far above any element of a gradient


def sgd(rate: float, **changes: float) -> tinker.AdamParams:
    """Plain gradient descent with this rate."""
    return adam(**({"learning_rate": rate * EPS, "eps": EPS} | changes))


def adam(learning_rate: float, eps: float = 1e-12, **changes: float) -> tinker.AdamParams:
    """Without memory unless `changes` give it one."""
    return tinker.AdamParams(**({"learning_rate": learning_rate, "beta1": 0.0, "beta2": 0.0, "eps": eps} | changes))


@dataclass(frozen=True, slots=True)
class Step:
    """Calls of forward_backward, then a step. The first datum of the first call must be of data.TOKENS."""

    optimizer: tinker.AdamParams
    calls: tuple[tuple[tinker.Datum, ...], ...] = ((weighted(),),)
    loss_fn: Any = "cross_entropy"


def idle(optimizer: tinker.AdamParams) -> Step:
    """A step whose gradient is 0."""
    return Step(optimizer, ((still(),),), "importance_sampling")


@dataclass(frozen=True, slots=True)
class Climb:
    """`totals`: summed logprob before each step and after the last. `grad_norms`: as reported, None where not."""

    totals: tuple[float, ...]
    grad_norms: tuple[float | None, ...]
    logprobs: tuple[float, ...]  # after the last step, one for each target

    @property
    def gains(self) -> tuple[float, ...]:
        return tuple(after - before for before, after in zip(self.totals, self.totals[1:], strict=False))


async def climb(client: tinker.TrainingClient, steps: Sequence[Step] = ()) -> Climb:
    """All requests are sent before any is awaited. Raises BackendError when one fails."""
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
    return Climb(tuple(map(math.fsum, logprobs)), tuple(_norm(m.metrics or {}) for m in metrics), tuple(logprobs[-1]))


async def total(client: tinker.TrainingClient) -> float:
    """Summed logprob of data.TOKENS under the weights in training; changes nothing."""
    return (await climb(client)).totals[-1]


async def _all(futures: Sequence[Any]) -> list[Any]:
    gathered = asyncio.gather(*(_one(future) for future in futures), return_exceptions=True)
    try:
        results = await asyncio.wait_for(gathered, CALL_LIMIT_SEC)
    except TimeoutError:
        raise BackendError(f"training: no answer within {CALL_LIMIT_SEC:.0f} s") from None
    for result in results:
        if isinstance(result, SDK_ERRORS):
            raise BackendError(f"training: {plain(result)}")
        if isinstance(result, BaseException):
            raise result
    return results


async def _one(future: Any) -> Any:
    return await future


def _norm(metrics: dict[str, float]) -> float | None:
    return next((value for name, value in metrics.items() if name.rsplit("/", 1)[-1] == "grad_norm"), None)
