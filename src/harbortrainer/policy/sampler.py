"""Samples the current policy for all trials: retries transient faults, checks answers, counts requests and tokens."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any, NotRequired, Protocol, TypedDict, Unpack, runtime_checkable

import httpx
import tinker
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from harbortrainer.policy.sample import History, Sample, SamplingError, Speaker, to_sample
from harbortrainer.policy.silence import Silences

COUNTERS = ("requests", "prompt_tokens", "sampled_tokens", "truncated", "retries", "faults", "request_seconds")
MOST_SAID = 1 << 20  # ids of an answer in messages, which its endpoint has limited
BUSY, IN_FLIGHT = "busy_seconds", "in_flight_seconds"


class SamplingClient(Protocol):
    """The part of `tinker.SamplingClient` that is used."""

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Awaitable[Any]: ...


@runtime_checkable
class PerTrial(Protocol):
    """A policy that answers each trial by a client of its own."""

    def of_trial(self, task: Any) -> SamplingClient | Speaker:
        """Return the client for a trial of the task with this `ref`."""
        ...


class Follower(Protocol):
    """Samples on other machines what a PolicySampler publishes. `totals`: as PolicySampler has them."""

    @property
    def totals(self) -> Mapping[str, float]: ...

    def published(self, client: SamplingClient, version: int) -> None:
        """Sample from `client` from now on."""

    async def drain(self) -> None:
        """Wait until no request can be in flight."""

    async def abandon(self) -> None:
        """Cancel all requests."""


class SamplingLimits(TypedDict):
    """The limits of a completion, which ends with a sampled `stop` id. `history`: what the prompt's ids say."""

    max_tokens: int
    temperature: float
    stop: Sequence[int]
    seed: NotRequired[int | None]
    history: NotRequired[History | None]


class Sampler(Protocol):
    """Samples for one trial.

    `powers_of_two`: an answer limited by the room left in the context gets a power of two as its limit.
    """

    powers_of_two: bool

    async def sample(self, prompt_T: Sequence[int], **limits: Unpack[SamplingLimits]) -> Sample:
        """Return one completion of the prompt. Raises SamplingError."""
        ...

    def lost_since(self, began: float) -> float:
        """Return seconds since that event loop time in which the server could not answer."""
        return 0.0


class PolicySampler(Sampler):
    """Samples the client that was published last, and keeps its requests until they have ended.

    skyrl as published loads a sampler's weights over the training weights when it is sampled; there no request may
    outlive its batch: the request of a cancelled caller stays here, and `drain` waits for it.
    """

    def __init__(
        self,
        *,
        request_timeout_sec: float = 600.0,
        attempts: int = 3,
        longest_wait_sec: float = 10.0,
        powers_of_two: bool = False,
        silences: Silences | None = None,
    ) -> None:
        """`request_timeout_sec`: for one answer with its retries; `longest_wait_sec`: between two attempts.

        `silences`: of the server, where the run looks at it.
        """
        self.powers_of_two = powers_of_two
        self.version = -1  # of the published weights; -1 = none yet
        self._timeout = request_timeout_sec
        self._attempts = attempts
        self._longest_wait = longest_wait_sec
        self._source: SamplingClient | PerTrial | None = None
        self._in_flight: set[asyncio.Task[Sample]] = set()
        self._users: Counter[int] = Counter()  # requests in flight, and evaluations that keep their weights, by version
        self._busy_seconds = 0.0
        self._in_flight_seconds = 0.0
        self._counted_at = 0.0  # clock time up to which both are counted
        self._silences = silences or Silences()
        self._counters: dict[str, float] = dict.fromkeys(COUNTERS, 0.0)
        self._companions: list[PolicySampler] = []
        self._follower: Follower | None = None

    def follow(self, follower: Follower) -> None:
        """Publish to `follower` too, wait for its requests and count them."""
        self._follower = follower
        if self._source is not None:
            follower.published(self._published(), self.version)

    def companion(self) -> PolicySampler:
        """Return a sampler of other weights with the same limits and counters of its own.

        `drain` and `abandon` of this sampler wait for its requests too: where sampling overwrites the weights in
        training, none of them may be in flight beside an update.
        """
        other = PolicySampler(
            request_timeout_sec=self._timeout,
            attempts=self._attempts,
            longest_wait_sec=self._longest_wait,
            powers_of_two=self.powers_of_two,
            silences=self._silences,
        )
        self._companions.append(other)
        return other

    def publish(self, source: SamplingClient | PerTrial, version: int) -> None:
        """Sample from `source` from now on; every sample carries `version`."""
        self._source, self.version = source, version
        if self._follower is not None:
            self._follower.published(self._published(), version)

    def withdraw(self) -> None:
        """Cancel all requests; none can be made until weights are published again."""
        self._source = None
        for task in self._all_in_flight():
            task.cancel()

    def of_trial(self, task: Any) -> Sampler:
        """Return what samples for a trial of the task with this `ref`."""
        if isinstance(self._source, PerTrial):
            return _Held(self, self._source.of_trial(task), self.version)
        return self

    @contextlib.contextmanager
    def pinned(self, client: SamplingClient, version: int) -> Iterator[Sampler]:
        """Yield what samples the weights of `client` within the block, whatever is published;

        `version` counts as in use.
        """
        self._users[version] += 1
        try:
            yield _Held(self, client, version, self.powers_of_two)
        finally:
            self._users[version] -= 1

    def relabel(self, version: int) -> None:
        """Let samples carry `version` from now on; the weights are the same."""
        self.version = version
        if self._follower is not None:
            self._follower.published(self._published(), version)

    @property
    def versions_in_use(self) -> set[int]:
        """Versions of the weights that a request or a trial still needs."""
        return {version for version, users in self._users.items() if users}

    @property
    def totals(self) -> dict[str, float]:
        """Totals so far, those of the follower added: by the names in COUNTERS; BUSY, seconds with a request in flight;
        IN_FLIGHT, the integral over time of the number of requests in flight.
        """
        self._count()
        own = self._counters | {BUSY: self._busy_seconds, IN_FLIGHT: self._in_flight_seconds}
        followed = {} if self._follower is None else self._follower.totals
        return {name: value + followed.get(name, 0.0) for name, value in own.items()}

    @property
    def lost(self) -> bool:
        """Whether the server is known to have lost the weights that were published last."""
        lost = getattr(self._source, "lost", None)
        return lost is not None and lost.is_set()

    async def sample(self, prompt_T: Sequence[int], **limits: Unpack[SamplingLimits]) -> Sample:
        """Return one completion of the prompt. Raises SamplingError.

        The request of a cancelled caller runs on; `drain` waits for it.
        """
        return await self.sample_from(self._published(), self.version, prompt_T, **limits)

    async def sample_from(
        self, client: SamplingClient | Speaker, version: int, prompt_T: Sequence[int], **limits: Unpack[SamplingLimits]
    ) -> Sample:
        """`sample` from the weights of `client`, which were published as `version`, or from what it says."""
        params = tinker.types.SamplingParams(
            max_tokens=limits["max_tokens"],
            temperature=limits["temperature"],
            stop=list(limits["stop"]),
            seed=limits.get("seed"),
        )
        self._count()
        self._silences.asked()
        history = limits.get("history")
        task = asyncio.create_task(self._request(client, version, prompt_T, params, history))
        self._in_flight.add(task)
        self._users[version] += 1
        task.add_done_callback(functools.partial(self._finished, version))
        return await asyncio.shield(task)

    def lost_since(self, began: float) -> float:
        return self._silences.lost(began)

    def server_away(self, began: float, limit_sec: float) -> bool:
        """Return whether the server was silent since that event loop time, or has lost the published weights.

        A silence of more than `limit_sec` that lasts is no reason to wait for it any more.
        """
        return self.lost or (self._silences.silent(began) > 0 and self._silences.silent_now < limit_sec)

    async def drain(self) -> None:
        """Wait until no request is in flight. Each has a time limit, so this ends."""
        await self._settled()
        if self._follower is not None:
            await self._follower.drain()

    async def abandon(self) -> None:
        """Cancel all requests without waiting for the server: at the end of a run, when no training follows."""
        for task in self._all_in_flight():
            task.cancel()
        await self._settled()
        if self._follower is not None:
            await self._follower.abandon()

    async def _settled(self) -> None:
        while running := self._all_in_flight():
            await asyncio.wait(running)

    def _all_in_flight(self) -> set[asyncio.Task[Sample]]:
        return self._in_flight.union(*(other._in_flight for other in self._companions))

    async def _request(
        self,
        client: SamplingClient | Speaker,
        version: int,
        prompt_T: Sequence[int],
        params: tinker.types.SamplingParams,
        history: History | None,
    ) -> Sample:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                if speaks := isinstance(client, Speaker):
                    response = await client.speak(history or History(()), params)
                else:
                    response = await self._ask(client, prompt_T, params)
        except TimeoutError as error:
            raise SamplingError(f"no answer within {self._timeout:g} s") from error
        except (tinker.TinkerError, httpx.HTTPError, OSError, ValueError) as error:
            # ValueError: how the SDK reports a request that the server's engine refused
            message = next(iter(str(error).strip().splitlines()), "")[:300]
            raise SamplingError(f"{type(error).__name__}: {message}") from error
        self._silences.answered()
        most = MOST_SAID if speaks else params.max_tokens or 0  # in its own vocabulary an answer may be shorter
        sample = to_sample(response, most, version, time.monotonic() - started)
        self._counters["prompt_tokens"] += len(prompt_T)
        self._counters["sampled_tokens"] += len(sample.tokens_T)
        self._counters["truncated"] += sample.truncated
        self._counters["request_seconds"] += sample.seconds
        return sample

    async def _ask(
        self, client: SamplingClient, prompt_T: Sequence[int], params: tinker.types.SamplingParams
    ) -> tinker.types.SampleResponse:
        # `from_ints` checks each id, twice
        chunk = tinker.types.EncodedTextChunk.model_construct(tokens=list(prompt_T))
        prompt = tinker.types.ModelInput.model_construct(chunks=[chunk])
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(_transient()),
            stop=stop_after_attempt(self._attempts),
            wait=wait_random_exponential(multiplier=0.5, max=self._longest_wait),
            reraise=True,
        ):
            with attempt:
                self._counters["retries"] += attempt.retry_state.attempt_number > 1
                return await client.sample(prompt=prompt, num_samples=1, sampling_params=params)
        raise AssertionError("tenacity ends with a result or an error")

    def _published(self) -> SamplingClient:
        if self._source is None or isinstance(self._source, PerTrial):
            raise RuntimeError("no sampling client was published")
        return self._source

    def _count(self) -> None:
        """Add the time since the last call. Call it before the number of requests changes."""
        now = time.monotonic()
        self._busy_seconds += (now - self._counted_at) * bool(self._in_flight)
        self._in_flight_seconds += (now - self._counted_at) * len(self._in_flight)
        self._counted_at = now

    def _finished(self, version: int, task: asyncio.Task[Sample]) -> None:
        self._count()
        self._silences.ended()
        self._users[version] -= 1
        self._in_flight.discard(task)
        self._counters["requests"] += 1
        if task.cancelled() or task.exception() is not None:  # `exception` marks it as seen
            self._counters["faults"] += 1


def _transient() -> tuple[type[Exception], ...]:
    """Errors of the SDK and of the network after which a request is sent again."""
    sdk = tinker.APIConnectionError, tinker.InternalServerError, tinker.RateLimitError
    return *sdk, httpx.TransportError, ConnectionError


class _Held(Sampler):
    """Samples one client, whatever was published since."""

    def __init__(
        self, base: PolicySampler, client: SamplingClient | Speaker, version: int, powers_of_two: bool = False
    ) -> None:
        self._base, self._client, self._version, self.powers_of_two = base, client, version, powers_of_two

    async def sample(self, prompt_T: Sequence[int], **limits: Unpack[SamplingLimits]) -> Sample:
        return await self._base.sample_from(self._client, self._version, prompt_T, **limits)

    def lost_since(self, began: float) -> float:
        return (self._client.lost if isinstance(self._client, Speaker) else self._base.lost_since)(began)
