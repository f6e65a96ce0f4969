"""A Tinker API in this process: a small softmax model with real LoRA adapters and numerics as noisy as wanted."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import tinker

from harbortrainer.backend.sessions import Session
from harbortrainer.probe.probe import measure_all
from harbortrainer.probe.report import ProbeFindings
from harbortrainer.probe.session import TOKENS, ProbeSession
from tests.support.recorded_run import Answer

VOCABULARY, WIDTH, RANK = 256, 24, 4
BASE = np.random.default_rng(1).normal(size=(VOCABULARY, WIDTH)) * 0.6
FEATURES = np.random.default_rng(2).normal(size=(VOCABULARY, WIDTH)) / WIDTH**0.5 * 2
LOGITS = FEATURES @ BASE.T * 3  # of the base model: row t is that after token t
URL = "http://nowhere"


@dataclass(frozen=True)
class Numerics:
    """`noise`: standard deviation of each logprob, nats, new at each call. `gradient`: of each element, relative;
    `rounding`: the same, equal at each call.

    `norm`: of the gradient of the probe's tokens under a fresh adapter. `wrong`: what the server does not mean as
    Tinker does.
    """

    noise: float = 0.0
    gradient: float = 0.0
    rounding: float = 0.0
    norm: float = 10.0
    seed: int = 0
    reports_norm: bool = True
    wrong: tuple[str, ...] = ()


@dataclass
class Adapter:
    a: np.ndarray  # (RANK, WIDTH)
    b: np.ndarray  # (VOCABULARY, RANK)

    @classmethod
    def fresh(cls) -> "Adapter":
        return cls(np.random.default_rng(3).normal(size=(RANK, WIDTH)) / WIDTH**0.5, np.zeros((VOCABULARY, RANK)))

    def copy(self) -> "Adapter":
        return Adapter(self.a.copy(), self.b.copy())

    def scores(self, tokens: Sequence[int], scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Logprobs of all tokens after each of `tokens`, shape (len, VOCABULARY), and their features."""
        x = FEATURES[list(tokens)]
        logits = LOGITS[list(tokens)] + scale * (x @ self.a.T) @ self.b.T
        logits -= logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), x

    def gradient(
        self, scores: tuple[np.ndarray, np.ndarray], tokens: Sequence[int], slopes: np.ndarray, scale: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of the sum of slopes times logprobs of the next tokens. `scores`: after each but the last of `tokens`."""
        logprobs, x = scores
        errors = -np.exp(logprobs)
        errors[np.arange(len(x)), list(tokens[1:])] += 1
        errors *= slopes[:, None]
        return scale * (errors @ self.b).T @ x, scale * errors.T @ (x @ self.a.T)


@dataclass
class Server:
    """Adapters and their snapshots."""

    numerics: Numerics
    adapters: list["Training"] = field(default_factory=list)
    saved: dict[str, tuple["Training", Adapter]] = field(default_factory=dict)
    made: int = 0
    passes: list[tuple[int, ...]] = field(default_factory=list)  # tokens of each datum
    samples: list[tuple[int, bool]] = field(default_factory=list)  # tokens at most; whether the prompt is scored

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.numerics.seed)
        fresh = Adapter.fresh()
        parts = fresh.gradient(fresh.scores(TOKENS[:-1], 1.0), TOKENS, np.ones(len(TOKENS) - 1), 1.0)
        self.scale = self.numerics.norm / float(np.sqrt(sum((part**2).sum() for part in parts)))

    def heard(self, values: np.ndarray) -> np.ndarray:
        return values + self.rng.normal(size=values.shape) * self.numerics.noise

    # as the SDK's service client
    def create_lora_training_client(self, model: str, rank: int, seed: int) -> Answer["Training"]:
        if "one slot" in self.numerics.wrong and self.adapters:
            return failing("Maximum number of LoRA adapters (1) reached")
        self.made += 1
        self.adapters.append(Training(self, f"model_{self.made}"))
        return Answer(self.adapters[-1])

    def create_sampling_client(self, model_path: str) -> Answer["Sampling"]:
        return Answer(Sampling(self, model_path))

    def unload(self, request: httpx.Request) -> httpx.Response:
        model_id = json.loads(request.content).get("model_id")
        self.adapters = [one for one in self.adapters if one.model_id != model_id]
        return httpx.Response(200, json={"request_id": "1"})

    def delete_checkpoint_from_tinker_path(self, path: str) -> Answer[None]:
        return Answer(None)


def failing(message: str) -> Any:
    async def fail() -> None:
        raise ValueError(message)

    return fail()


class Training:
    """As the SDK's training client, and the optimizer of one adapter."""

    def __init__(self, server: Server, model_id: str) -> None:
        self.server, self.model_id = server, model_id
        self.adapter = Adapter.fresh()
        self.first, self.second = (Adapter(0 * self.adapter.a, 0 * self.adapter.b) for _ in range(2))
        self.steps, self.datums = 0, 0
        self.pending = Adapter(0 * self.adapter.a, 0 * self.adapter.b)

    def forward_backward(self, data: Sequence[tinker.Datum], loss_fn: str, config: Any = None) -> Answer[Any]:
        self.server.passes.append(tuple(datum.model_input.length for datum in data))
        outputs = [self._pass(datum, loss_fn, config or {}, len(data)) for datum in data]
        self.datums += len(data)
        return Answer(SimpleNamespace(loss_fn_outputs=outputs, metrics={}))

    def _pass(self, datum: tinker.Datum, loss_fn: str, config: dict[str, float], n_datums: int) -> dict[str, Any]:
        inputs = {name: np.array(value.data, float) for name, value in datum.loss_fn_inputs.items()}
        targets = inputs["target_tokens"].astype(int)
        tokens = [*datum.model_input.to_ints(), int(targets[-1])]
        scores = self.adapter.scores(tokens[:-1], self.server.scale)
        logprobs = self.server.heard(scores[0][np.arange(len(targets)), targets])
        if "padding" in self.server.numerics.wrong:
            logprobs -= 0.2 * (len(tokens) - len(TOKENS))
        if "clip settings" in self.server.numerics.wrong:
            config = {}
        loss, slopes = loss_of(loss_fn, config, logprobs, inputs)
        weights = inputs.get("weights", np.ones(len(targets)))
        divisor = weights.sum() if "example mean" in self.server.numerics.wrong else 1.0
        divisor *= n_datums if "mean of a call" in self.server.numerics.wrong else 1.0
        parts = self.adapter.gradient(scores, tokens, slopes / divisor, self.server.scale)
        for total, part in zip(self._parts(self.pending), map(self._noisy, parts), strict=True):
            total += part
        tensors = {"logprobs": logprobs, "elementwise_loss": loss}
        return {name: tinker.TensorData.from_numpy(value.astype(np.float32)) for name, value in tensors.items()}

    def _noisy(self, part: np.ndarray) -> np.ndarray:
        new, equal = self.server.rng.normal(size=part.shape), np.random.default_rng(5).normal(size=part.shape)
        return part + (new * self.server.numerics.gradient + equal * self.server.numerics.rounding) * np.abs(part)

    @staticmethod
    def _parts(adapter: Adapter) -> tuple[np.ndarray, np.ndarray]:
        return adapter.a, adapter.b

    def optim_step(self, adam: tinker.AdamParams) -> Answer[Any]:
        wrong = self.server.numerics.wrong
        fixed = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "learning_rate": 1e-2}
        fixed |= {"grad_clip_norm": 0.0}
        adam = adam.model_copy(update={name: value for name, value in fixed.items() if name in wrong})
        divisor = self.datums if "example mean" in wrong else 1
        gradients = [part / max(divisor, 1) for part in self._parts(self.pending)]
        norm = float(np.sqrt(sum((part**2).sum() for part in gradients)))
        if adam.grad_clip_norm and norm > adam.grad_clip_norm:
            gradients = [part * adam.grad_clip_norm / norm for part in gradients]
        if "still" not in wrong:
            self._step(adam, gradients)
        self.pending, self.datums = Adapter(0 * self.adapter.a, 0 * self.adapter.b), 0
        reported = norm * (1 + 0.01 * self.server.rng.normal() * bool(self.server.numerics.noise))
        return Answer(SimpleNamespace(metrics={"grad_norm": reported} if self.server.numerics.reports_norm else {}))

    def _step(self, adam: tinker.AdamParams, gradients: Sequence[np.ndarray]) -> None:
        self.steps += 1
        groups = zip(*map(self._parts, (self.adapter, self.first, self.second)), gradients, strict=True)
        for weight, first, second, gradient in groups:
            first[:] = adam.beta1 * first + (1 - adam.beta1) * gradient
            second[:] = adam.beta2 * second + (1 - adam.beta2) * gradient**2
            mean = first / (1 - adam.beta1**self.steps)
            size = np.sqrt(second / (1 - adam.beta2**self.steps))
            weight += adam.learning_rate * mean / (size + adam.eps)

    def save_weights_for_sampler(self, name: str) -> Answer[Any]:
        path = f"tinker://{self.model_id}/sampler_weights/{name}"
        self.server.saved[path] = (self, self.adapter.copy())
        return Answer(SimpleNamespace(path=path))


def loss_of(
    name: str, config: dict[str, float], logprobs: np.ndarray, inputs: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Losses of the targets, and minus their slopes by logprob."""
    if name == "cross_entropy":
        return -inputs["weights"] * logprobs, inputs["weights"]
    ratio, advantages = np.exp(logprobs - inputs["logprobs"]), inputs["advantages"]
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    clipped = np.clip(ratio, low, high)
    if name == "cispo":
        return -clipped * logprobs * advantages, clipped * advantages
    if name == "ppo":
        worse = np.minimum(ratio * advantages, clipped * advantages)
        return -worse, np.where(worse == ratio * advantages, ratio * advantages, 0.0)
    return -ratio * advantages, ratio * advantages


class Sampling:
    """As the SDK's sampling client. `wrong`: sampling loads weights over training; training shows through."""

    def __init__(self, server: Server, path: str) -> None:
        self.server, self.path = server, path

    def sample(
        self, prompt: tinker.ModelInput, num_samples: int, params: tinker.SamplingParams, include_prompt_logprobs: bool
    ) -> Awaitable[Any]:
        self.server.samples.append((params.max_tokens or 0, include_prompt_logprobs))
        wrong = self.server.numerics.wrong
        training, weights = self.server.saved[self.path]
        if "overwrites" in wrong:
            training.adapter = weights.copy()
        adapter = training.adapter if "shows through" in wrong else weights
        tokens = list(prompt.to_ints())
        logprobs = []
        rng = np.random.default_rng(params.seed)
        for _ in range(params.max_tokens or 1):
            scores = adapter.scores(tokens[-1:], self.server.scale)[0][0]
            hot = np.exp(scores / params.temperature)
            tokens.append(int(rng.choice(VOCABULARY, p=hot / hot.sum())))
            told = np.log(hot / hot.sum()) if "temperature" in wrong else scores
            logprobs.append(float(self.server.heard(told[tokens[-1:]])[0]))
        if include_prompt_logprobs and "refuses prompts" in wrong:
            return failing("no prompt logprobs")
        n = len(prompt.to_ints())
        exact, _ = adapter.scores(tokens[: n - 1], self.server.scale)
        scored = self.server.heard(exact[np.arange(n - 1), tokens[1:n]]).tolist()
        values = (scored if "short" in wrong else [None, *scored]) if include_prompt_logprobs else None
        sequence = SimpleNamespace(tokens=tokens[n:], logprobs=logprobs)
        return Answer(SimpleNamespace(sequences=[sequence], prompt_logprobs=values))


async def probed(numerics: Numerics, measure: Callable[..., Awaitable[object]] = measure_all) -> ProbeFindings:
    """What the probe, or a part of it, finds of such a server."""
    server: Any = Server(numerics)
    bench, findings = ProbeSession(Session(server, server, URL, "key"), "model"), ProbeFindings()
    await bench.http.aclose()
    bench.http = httpx.AsyncClient(base_url=URL, transport=httpx.MockTransport(server.unload))
    await measure(bench, findings)
    await bench.close()
    return findings
