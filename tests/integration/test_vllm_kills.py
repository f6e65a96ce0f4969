"""Kills of vLLM, of the server, and of both, with samples of two samplers and of the base model in flight; a hanging
engine. At night.

VLLM_KILLS: how many kills (default 4, one of each kind; 30 for a release).
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tinker
from tinker.proto.response_conv import deserialize_sample_response

from tests.conftest import MODEL
from tests.support.engine_parts import DATA, STILL, sampler, step
from tests.support.processes import freeze
from tests.support.server_parts import Raw, awaited
from tests.support.small_server import Server
from tests.support.vllm_server import WRONG, sampling, settled, until_ready, vllm_process, vllm_server

pytestmark = pytest.mark.nightly
KILLS = int(os.environ.get("VLLM_KILLS", "4"))
KINDS = ("vLLM's engine", "the server", "vLLM's API", "both")
PROMPT = list(range(5, 25))
NEW_TOKENS = 100
SEED = 7


@pytest.fixture(scope="module")
def server(server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with vllm_server(tmp_path_factory.mktemp("kills")) as server:
        yield server


@dataclass
class Count:
    """Of one kind of kill. `wrong`: samples that are not of the weights that were asked for; `apart`: nats, largest.

    `repeated`: of the seeded samples, those with the tokens of before.
    """

    kills: int = 0
    answered: int = 0
    failed: list[str] = field(default_factory=list)
    wrong: int = 0
    seeded: int = 0
    repeated: int = 0
    apart: float = 0.0
    training_changed: int = 0
    seconds: list[float] = field(default_factory=list)


class Work:
    """An adapter with two samplers of different weights and a saved state, and what they answer when all is well."""

    async def prepare(self, url: str) -> None:
        self.url = url
        await self.connect()
        self.client = await self.service.create_lora_training_client(str(MODEL), rank=8, seed=1)
        self.samplers = {}
        for name in ("one", "two"):
            await step(self.client, DATA)
            await sampler(self.service, self.client, name)
            self.samplers[name] = f"tinker://{self.client.model_id}/sampler_weights/{name}"
        self.state = (await self.client.save_state("state")).path
        self.norm = await step(self.client, DATA, adam=STILL)
        self.expected = {name: sequence(settled(self.raw, self.ask(name, seed=SEED))) for name in ("one", "two", "")}
        assert len({one.tokens for one in self.expected.values()}) == 3, "other weights, other samples"

    async def connect(self) -> None:
        self.raw = Raw(self.url, MODEL)
        self.service = tinker.ServiceClient(base_url=self.url, api_key="tml-dummy")

    async def restore(self) -> None:
        """The adapter from its saved state, in a server that has forgotten it."""
        await self.connect()
        self.client = await self.service.create_training_client_from_state_with_optimizer(self.state)

    def ask(self, name: str, **params: Any) -> httpx.Response:
        """Promise of a sample; of the base model without a name."""
        settings = {"max_tokens": NEW_TOKENS, "temperature": 1.0} | params
        if not name:
            return self.raw.sample(PROMPT, **settings)
        prompt = {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]}
        return self.raw.post("asample", model_path=self.samplers[name], prompt=prompt, sampling_params=settings)

    async def apart(self, name: str, sample: "Sample") -> float:
        """The largest difference between the sample's log-probabilities and those of the trainer's engine, in nats."""
        of: dict[str, Any] = {"model_path": self.samplers[name]} if name else {"base_model": str(MODEL)}
        client = await self.service.create_sampling_client(**of)
        found = await client.compute_logprobs(tinker.ModelInput.from_ints([*PROMPT, *sample.tokens]))
        return float(np.abs(np.array(found[len(PROMPT) :], float) - np.array(sample.logprobs)).max())


@dataclass(frozen=True)
class Sample:
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


def sequence(answer: httpx.Response) -> Sample:
    assert answer.status_code == 200, answer.text
    [one] = deserialize_sample_response(answer.content).sequences
    return Sample(tuple(one.tokens), tuple(map(float, one.logprobs or ())))


def kill(server: Server, what: str) -> None:
    if what != "the server":
        os.kill(vllm_process(server.state, engine=what == "vLLM's engine"), signal.SIGKILL)
    if what in ("the server", "both"):
        server.kill()


async def test_every_request_is_answered_whatever_is_killed(server: Server) -> None:
    work, counts = Work(), {kind: Count() for kind in KINDS}
    await work.prepare(server.url)
    assert await work.apart("two", work.expected["one"]) > 100 * WRONG, "the judge tells the samplers apart"
    for number in range(KILLS):
        what = KINDS[number % len(KINDS)]
        await one_kill(server, work, what, counts[what])
        print(f"kill {number + 1}, {what}: {counts[what]}", flush=True)
    for kind, count in counts.items():
        answers = f"{count.answered} | {len(count.failed)} | {count.wrong} ({count.apart:.1g} nats)"
        seeds = f"{count.repeated} of {count.seeded} | {count.training_changed}"
        print(f"| {kind} | {count.kills} | {answers} | {seeds} | {np.median(count.seconds or [0]):.0f} s |")
    assert not [cause for count in counts.values() for cause in count.failed]
    assert not sum(count.wrong + count.training_changed for count in counts.values())
    assert all(count.repeated == count.seeded for count in counts.values())


async def one_kill(server: Server, work: Work, what: str, count: Count) -> None:
    """Three seeded samples and two others; the trainer's engine judges of which weights they are."""
    asked = [("one", SEED), ("two", SEED), ("", SEED), ("one", None), ("two", None)]
    promises = [(name, seed, work.ask(name, **({} if seed is None else {"seed": seed}))) for name, seed in asked]
    awaited(lambda: sampling(server.url)["in_flight"] >= len(promises) or None)
    kill(server, what)
    began = time.monotonic()
    if what in ("the server", "both"):
        server.start()
        await work.restore()
    count.training_changed += await step(work.client, DATA, adam=STILL) != work.norm
    for name, seed, promise in promises:
        answer = settled(work.raw, promise)
        if answer.status_code != 200:
            count.failed.append(answer.text)
            continue
        count.answered += 1
        one = sequence(answer)
        apart = await work.apart(name, one)
        count.wrong += apart > WRONG
        count.apart = max(count.apart, apart)
        if seed is not None:
            count.seeded += 1
            count.repeated += one.tokens == work.expected[name].tokens
    count.kills += 1
    count.seconds.append(time.monotonic() - began)
    until_ready(server.url)


def test_an_engine_that_hangs_is_ended_and_its_samples_are_computed_by_the_next(
    server_env: None, tmp_path: Path
) -> None:
    """vLLM's API goes on answering /health."""
    with vllm_server(tmp_path, VLLM_HANG_SEC="20") as server:
        raw = Raw(server.url, MODEL)
        settled(raw, raw.sample(PROMPT, max_tokens=4)).raise_for_status()
        freeze(vllm_process(server.state, engine=True))
        waiting = [raw.sample(PROMPT, max_tokens=4, seed=SEED) for _ in range(3)]
        answers = [settled(raw, promise) for promise in waiting]
        [status] = json.loads((server.state / "vllm.json").read_text())
    assert all(sequence(answer).tokens for answer in answers)
    assert status["deaths"] == 1 and "it computed nothing for 20 s" in status["cause"]
