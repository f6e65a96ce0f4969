"""The shared sampler: refreshable, bounded, drained before training, and honest about faults."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import tinker

from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup
from harbortrainer.policy.sampler import PolicySampler, SamplingError
from harbortrainer.run.metrics import StepUsage
from tests.support.fakes import Request, ScriptedClient, ask, chat_template, response


def publish(sampler: PolicySampler, answer: Any, version: int = 1) -> ScriptedClient:
    client = ScriptedClient(answer, chat_template())
    sampler.publish(client, version)
    return client


def connection_error() -> tinker.APIConnectionError:
    return tinker.APIConnectionError(request=httpx.Request("POST", "http://server"))


async def test_drain_waits_for_requests_of_cancelled_callers() -> None:
    sampler = PolicySampler()
    gate = asyncio.Event()

    class Slow(ScriptedClient):
        async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
            await gate.wait()
            return response([5])

    sampler.publish(Slow([], chat_template()), 1)
    caller = asyncio.create_task(ask(sampler))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    draining = asyncio.create_task(sampler.drain())
    await asyncio.sleep(0)
    assert len(sampler._in_flight) == 1 and not draining.done()
    gate.set()
    await draining
    assert len(sampler._in_flight) == 0 and sampler.totals["requests"] == 1


async def test_at_the_end_of_a_run_nobody_waits_for_a_server_that_hangs() -> None:
    sampler = PolicySampler()
    publish(sampler, lambda request: None)
    caller = asyncio.create_task(ask(sampler))
    await asyncio.sleep(0)
    caller.cancel()
    await sampler.abandon()
    assert len(sampler._in_flight) == 0


async def test_passing_faults_are_tried_again() -> None:
    sampler = PolicySampler(attempts=3, longest_wait_sec=0)
    failures = [connection_error(), connection_error()]

    def answer(request: Request) -> Any:
        if failures:
            raise failures.pop()
        return response([5])

    client = publish(sampler, answer)
    assert (await ask(sampler)).tokens_T == (5,)
    assert len(client.requests) == 3 and sampler.totals["retries"] == 2 and sampler.totals["faults"] == 0


async def test_lasting_faults_are_sampling_errors_in_one_line() -> None:
    sampler = PolicySampler(attempts=2, longest_wait_sec=0)

    def fail(request: Request) -> Any:
        raise connection_error()

    client = publish(sampler, fail)
    with pytest.raises(SamplingError, match="APIConnectionError: Connection error"):
        await ask(sampler)
    assert len(client.requests) == 2


async def test_a_refusal_is_not_tried_again() -> None:
    sampler = PolicySampler(attempts=3, longest_wait_sec=0)

    def refuse(request: Request) -> Any:
        raise ValueError("Error retrieving result: Error code: 400\nwith a traceback")

    client = publish(sampler, refuse)
    with pytest.raises(SamplingError, match=r"^ValueError: Error retrieving result: Error code: 400$"):
        await ask(sampler)
    assert len(client.requests) == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (response([1, 2], logprobs_T=[-1.0]), "1 logprobs for 2"),
        (response([1], logprobs_T=[float("nan")]), "not finite"),
        (response(list(range(9))), "more than max_tokens=8"),
        (SimpleNamespace(sequences=[SimpleNamespace(tokens=[1], logprobs=None)]), "no logprobs for 1"),
        (SimpleNamespace(sequences=[]), "0 sequences"),
    ],
)
async def test_answers_that_cannot_be_trained_on(bad: Any, message: str) -> None:
    sampler = PolicySampler()
    publish(sampler, lambda request: bad)
    with pytest.raises(SamplingError, match=message):
        await ask(sampler)


async def test_a_busy_server_with_few_requests_is_not_the_limit() -> None:
    """Measured on a GPU: waves of 11.5 of 64 seats kept the server busy for 91 % of the time."""

    class Waves(ScriptedClient):
        async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
            await asyncio.sleep(0.02)
            return response([5])

    sampler = PolicySampler()
    sampler.publish(Waves([], chat_template()), 1)
    usage = StepUsage(sampler)
    for n_requests in (11, 12) * 2:
        await asyncio.gather(*(ask(sampler) for _ in range(n_requests)))
        await asyncio.sleep(0.005)
    trial = Trajectory("t", "n", (), 1.0, Outcome.COMPLETED, times={"agent": 190.0})
    usage.sampled([TrajectoryGroup("t", (trial,), ())])
    busy = usage.metrics["util/sampler_busy"]
    assert 0 < busy < 1 and 6 < usage.metrics["util/requests_in_flight"] / busy < 12
    assert usage.metrics["util/agents_at_work"] == pytest.approx(190.0 * busy / sampler.totals["busy_seconds"])
