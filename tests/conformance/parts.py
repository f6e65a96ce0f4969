"""What the conformance tests share: data, one SGD step, and how a refusal must look."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tinker

LIMIT_SEC = 600.0  # on a slow machine; what is not refused as it should be, the SDK retries for five minutes
RANK = 8
TOKENS = tuple(range(40, 65))  # 24 positions: one length bucket for all tests
OTHER_TOKENS = tuple(range(100, 117))  # 16 positions
MAX_TOKENS = 8
EPS = 1e5  # far above any gradient, and no memory: Adam is then plain gradient descent with rate learning_rate / EPS


def settled[T](future: tinker.APIFuture[T]) -> T:
    """The result. Raises TimeoutError after LIMIT_SEC."""
    return future.future().result(LIMIT_SEC)


def datum(tokens: Sequence[int], **inputs: Sequence[float]) -> tinker.Datum:
    """tokens[:-1] -> tokens[1:]; each input has one value for every target."""
    floats = {name: tinker.TensorData(data=list(values), dtype="float32") for name, values in inputs.items()}
    targets = tinker.TensorData(data=list(tokens[1:]), dtype="int64")
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(list(tokens[:-1])),
        loss_fn_inputs={"target_tokens": targets, **floats},
    )


def weighted(tokens: Sequence[int] = TOKENS, weight: float = 1.0) -> tinker.Datum:
    """Every target with the same cross_entropy weight."""
    return datum(tokens, weights=[weight] * (len(tokens) - 1))


def output(future: tinker.APIFuture[tinker.ForwardBackwardOutput], name: str) -> list[list[float]]:
    """One of the loss function's outputs, a list for each datum."""
    return [[float(value) for value in one[name].data] for one in settled(future).loss_fn_outputs]


def logprobs(client: tinker.TrainingClient, tokens: Sequence[int] = TOKENS) -> list[float]:
    """Of every target under the weights in training; changes nothing."""
    return output(client.forward([weighted(tokens)], "cross_entropy"), "logprobs")[0]


def total(client: tinker.TrainingClient, tokens: Sequence[int] = TOKENS) -> float:
    return math.fsum(logprobs(client, tokens))


def descend(
    client: tinker.TrainingClient,
    *calls: Sequence[tinker.Datum],
    rate: float = 2e-6,
    loss_fn: str = "cross_entropy",
    loss_fn_config: dict[str, float] | None = None,
    **adam: float,
) -> dict[str, float]:
    """One step of plain gradient descent on all calls together; the optimizer's metrics by their short names."""
    computed = [client.forward_backward(list(data), loss_fn, loss_fn_config) for data in calls]  # pyright: ignore[reportArgumentType]
    params = tinker.AdamParams(learning_rate=rate * EPS, beta1=0.0, beta2=0.0, eps=EPS, **adam)
    stepped = client.optim_step(params)
    for future in computed:
        settled(future)
    return {name.rsplit("/", 1)[-1]: value for name, value in (settled(stepped).metrics or {}).items()}


def gain(client: tinker.TrainingClient, *calls: Sequence[tinker.Datum], **settings: Any) -> float:
    """By how much one step raises the summed logprob of TOKENS."""
    before = total(client)
    descend(client, *calls, **settings)
    return total(client) - before


def adam_step(client: tinker.TrainingClient, tokens: Sequence[int] = TOKENS) -> float:
    """Summed logprob before one ordinary optimizer step, whose moments the next one inherits."""
    computed = client.forward_backward([weighted(tokens)], "cross_entropy")
    stepped = client.optim_step(tinker.AdamParams(learning_rate=1e-3))
    before = math.fsum(output(computed, "logprobs")[0])
    settled(stepped)
    return before


def sample(client: tinker.SamplingClient, seed: int = 0, n: int = 1, **settings: Any) -> list[tinker.SampledSequence]:
    """n answers to TOKENS."""
    params = tinker.SamplingParams(**({"max_tokens": MAX_TOKENS, "temperature": 1.0, "seed": seed} | settings))
    return list(settled(client.sample(tinker.ModelInput.from_ints(list(TOKENS)), n, params)).sequences)


def scored(client: tinker.SamplingClient, tokens: Sequence[int] = TOKENS) -> list[float]:
    """The sampler's logprob of every token but the first."""
    first, *rest = settled(client.compute_logprobs(tinker.ModelInput.from_ints(list(tokens))))
    assert first is None and len(rest) == len(tokens) - 1
    return [value for value in rest if value is not None]


def refused(ask: Callable[[], tinker.APIFuture[Any]], words: str) -> str:
    """The refusal: within LIMIT_SEC, a 4xx status that the SDK does not retry, with `words` (a pattern) in its text."""
    with pytest.raises((tinker.TinkerError, ValueError)) as caught:
        settled(ask())
    text = str(caught.value)
    status = getattr(caught.value, "status_code", None) or int((re.findall(r"Error code: (\d+)", text) or ["0"])[0])
    assert 400 <= status < 500 and status not in (408, 409, 429), text
    assert re.search(words, text, re.IGNORECASE), text
    return text
