"""Requests to one vLLM server: a sample as vLLM's /v1/completions takes it, and its answer as skyrl stores it.

Upstream: skyrl/tinker/extra/external_inference.py, ExternalInferenceClient. It sends neither stop ids nor ignore_eos,
makes every failure final, loses vLLM's messages and passes finish reasons on that are no stop reasons.
Nothing of skyrl is imported here: the unit tests run without it.
"""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

STOP_REASONS = ("stop", "length")
NOT_FINITE = "the model's log-probabilities are not finite"
POLL_SEC, CONNECT_SEC, ANSWER_SEC = 0.5, 10.0, 120.0  # ANSWER_SEC: of everything but samples
IDLE_SEC = 2.0  # a connection is used again; vLLM closes one after 5 s
GOOD, CLIENT_ERRORS = range(200, 300), range(400, 500)
NOT_FOUND, FAILED = 404, 500
TOO_MUCH_WORK = (429, 503)  # another time it may be less


class Refused(Exception):
    """Final: the message is the answer to the client."""


class Gone(Refused):
    """The sampler's file was deleted, replaced, or has expired."""


class NotServed(Exception):
    """vLLM does not know the adapter: it was restarted since the adapter was loaded."""


class Away(Exception):
    """vLLM does not answer, or not with a sample; the same request may succeed later.

    `life`: which life of vLLM has ended while it computed the request, or None. Raised twice for one end, it is equal.
    `failing`: the server, where it answered that it failed at the request.
    """

    def __init__(self, reason: str, life: tuple[str, int] | None = None, failing: "Vllm | None" = None) -> None:
        super().__init__(reason)
        self.life, self.failing = life, failing


@dataclass(frozen=True, slots=True)
class Ask:
    """A sample. `seed`: None unless the client gave one. `top_scores`: likeliest tokens per prompt token; None = none.

    `stop_tokens` are ids; each ends an answer and is its last token.
    """

    prompt: tuple[int, ...]
    n: int
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    top_scores: int | None = None

    def body(self, model: str) -> dict[str, Any]:
        """For POST /v1/completions. Only the given stops end an answer, as on the JAX sampler: ignore_eos."""
        body = {
            "model": model,
            "prompt": list(self.prompt),
            "n": self.n,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "ignore_eos": True,
            "stop_token_ids": list(self.stop_tokens),
            "stop": list(self.stop_strings),
            "logprobs": 0,
            "return_token_ids": True,
        }
        if self.seed is not None:  # each seeded request has a generator of its own, which costs time on a GPU
            body["seed"] = self.seed
        if self.top_scores is not None:
            body["prompt_logprobs"] = self.top_scores
        return body


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def message(self) -> str:
        """What vLLM says of a failure."""
        try:
            return str(json.loads(self.body)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return self.body.decode(errors="replace")[:300]


def output(ask: Ask, answer: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's answer with the fields of skyrl's SampleOutput. Raises Away for an aborted answer, Refused for NaN."""
    choices = answer["choices"]
    for one in choices:
        if one["finish_reason"] not in STOP_REASONS:
            raise Away(f"vLLM ended an answer with {one['finish_reason']!r}")
    sequences = [
        {"stop_reason": one["finish_reason"], "tokens": one["token_ids"], "logprobs": one["logprobs"]["token_logprobs"]}
        for one in choices
    ]
    scores, tops = prompt_scores(ask, choices[0].get("prompt_logprobs"))
    values = [*(value for one in sequences for value in one["logprobs"]), *(v for v in scores or () if v is not None)]
    if not all(value is not None and math.isfinite(value) for value in values):
        raise Refused(NOT_FINITE)
    return {"sequences": sequences, "prompt_logprobs": scores, "topk_prompt_logprobs": tops}


def prompt_scores(ask: Ask, raw: Sequence[Any] | None) -> tuple[list[float | None] | None, list[Any] | None]:
    """The prompt's logprobs, None for the first token, and (token, logprob) of the likeliest tokens at each place.

    vLLM gives the given token and the likeliest `top_scores`, in one mapping from the id as text.
    """
    if ask.top_scores is None or raw is None:
        return None, None
    places = [None if place is None else {int(key): one["logprob"] for key, one in place.items()} for place in raw]
    scores = [None if place is None else place[token] for token, place in zip(ask.prompt, places, strict=True)]
    if not ask.top_scores:
        return scores, None
    ranked = [None if p is None else sorted(p.items(), key=lambda item: -item[1])[: ask.top_scores] for p in places]
    return scores, ranked


class Vllm:
    """One vLLM server. `in_flight`: samples that it computes; `down`: its last request found no server."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self.in_flight = 0
        self.down = False
        self._lives = 1
        self.prompt_tokens = self.cached_tokens = 0  # of answered samples; cached: read from the prefix cache
        self._coming: asyncio.Task[None] | None = None
        self._headers = {"Authorization": f"Bearer {key}"}
        self._http: aiohttp.ClientSession | None = None  # made in the event loop

    async def close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
        if self._http is not None:
            await self._http.close()

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, limit_sec: float | None = ANSWER_SEC
    ) -> Answer:
        """Raises Away without an answer, and for 429 and 5xx."""
        if self._http is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SEC)
            self._http = aiohttp.ClientSession(headers=self._headers, connector=connector)
        timeout = aiohttp.ClientTimeout(sock_read=limit_sec, sock_connect=CONNECT_SEC)
        try:
            async with self._http.request(
                method, self.url + path, json=body, timeout=timeout, allow_redirects=False
            ) as response:
                answer = Answer(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            self.down = True
            self.coming()
            computing = not isinstance(error, aiohttp.ClientConnectorError | TimeoutError)
            life = (self.url, self._lives) if computing else None
            raise Away(f"vLLM at {self.url}: {error or type(error).__name__}", life) from error
        self._lives += self.down
        self.down = False
        if answer.status in TOO_MUCH_WORK or answer.status >= FAILED:
            # 500 is also what vLLM's API answers when its engine has ended, before it ends itself
            life = (self.url, self._lives) if answer.status == FAILED else None
            failing = None if answer.status in TOO_MUCH_WORK else self
            raise Away(f"vLLM at {self.url} answers {answer.status}: {answer.message()}", life, failing)
        return answer

    async def sample(self, ask: Ask, model: str) -> dict[str, Any]:
        """The fields of skyrl's SampleOutput. Raises NotServed, Refused with vLLM's message, Away."""
        answer = await self._request("POST", "/v1/completions", ask.body(model), limit_sec=None)
        if answer.status == NOT_FOUND:
            raise NotServed(answer.message())
        if answer.status in CLIENT_ERRORS:
            raise Refused(answer.message())
        body = json.loads(answer.body)
        found = output(ask, body)
        usage = body.get("usage") or {}
        self.prompt_tokens += usage.get("prompt_tokens") or 0
        self.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return found

    async def samples(self, model: str) -> bool:
        """Whether it samples a token for a request that nothing is wrong with."""
        ask = Ask(prompt=(0,), n=1, max_tokens=1, temperature=1.0, top_p=1.0, top_k=-1, seed=None)
        try:
            return (await self._request("POST", "/v1/completions", ask.body(model))).status in GOOD
        except Away:
            return False

    async def load(self, name: str, folder: str) -> None:
        """Registers an adapter. Raises Refused with vLLM's message, Away."""
        answer = await self._request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})
        if answer.status in CLIENT_ERRORS and b"already been loaded" not in answer.body:
            raise Refused(f"vLLM refuses the adapter {name}: {answer.message()}")

    async def unload(self, name: str) -> None:
        """Forgets an adapter; one that vLLM does not know is forgotten. Raises Away."""
        await self._request("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    async def adapters(self) -> list[str]:
        """Names of the registered adapters. Raises Away."""
        models = json.loads((await self._request("GET", "/v1/models")).body).get("data", [])
        return [one["id"] for one in models if one.get("parent")]

    async def is_healthy(self) -> bool:
        try:
            return (await self._request("GET", "/health")).status in GOOD
        except Away:
            return False

    def coming(self) -> "asyncio.Task[None]":
        """A task that ends when the server answers; one for all who wait, so that a server is asked once a time."""
        if self._coming is None or self._coming.done():
            self._coming = asyncio.create_task(self._until_healthy())
        return self._coming

    async def _until_healthy(self) -> None:
        while not await self.is_healthy():  # noqa: ASYNC110
            await asyncio.sleep(POLL_SEC)
