"""What bench.sampler measures, through the Tinker API."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import httpx
import numpy as np
import tinker

ADAM = tinker.AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8)
WORDS = range(100, 40_000)  # of random prompts; a model with fewer tokens has its own limit
NEAR = 0.9, 1.1  # of ratios trainer / sampler
POLL_SEC = 0.05
# Of healthz: the engine's parts of a save, and the API's; vLLM loads while the engine writes the archive
PUBLISHING = tuple(f"save_{part}_seconds" for part in ("gather", "handover", "archive", "flush"))
PUBLISHING += ("load_seconds", "unpack_seconds")


@dataclass(frozen=True)
class Sizes:
    """Numbers of prompts and tokens; `grow`: tokens by which a trial's prompt grows each turn, answer included.

    `pause_ms`: most that a trial does between two turns; its answers then end at any token, mostly before `answer`.
    """

    prompts: int = 32
    tokens: int = 4000
    answer: int = 128
    added: int = 200
    trials: int = 32
    turns: int = 30
    first: int = 1000
    grow: int = 400
    pause_ms: int = 0
    datums: int = 8
    datum_tokens: int = 3500
    trusted: int = 32
    rounds: int = 3
    steps: int = 10
    publishes: int = 5
    rank: int = 32


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    logprobs: list[float]


def datum(tokens: Sequence[int]) -> tinker.Datum:
    inputs = {"target_tokens": np.array(tokens[1:]), "weights": np.ones(len(tokens) - 1, np.float32)}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(list(tokens[:-1])), loss_fn_inputs=inputs)


def agreement(gap: np.ndarray) -> dict[str, float]:
    """`gap`: (N,) log-probabilities, the trainer's less the sampler's. kl as logprobs/kl_sampler_trainer of a run."""
    ratio = np.exp(gap)
    outside = (ratio < NEAR[0]) | (ratio > NEAR[1])
    return {
        "mean_abs_nats": float(np.abs(gap).mean()),
        "max_abs_nats": float(np.abs(gap).max()),
        "kl_sampler_trainer": float((ratio - 1 - gap).mean()),
        "share_outside_0.9_1.1": float(outside.mean()),
    }


class Bench:
    """One adapter on the server at `url`. Call setup() first."""

    def __init__(self, url: str, model: str, sizes: Sizes, warm: int) -> None:
        self.url, self.model, self.sizes, self.warm = url.rstrip("/"), model, sizes, warm
        self._random, self._saves = random.Random(time.time_ns()), 0
        self._words, self._kind = WORDS, "jax"
        self._http = httpx.AsyncClient(timeout=30)
        self.reached: dict[str, Any] = {}  # by a measure that runs, for one that its limit ends

    async def setup(self) -> dict[str, Any]:
        """An adapter with weights that are not zero, published."""
        began = time.monotonic()
        config = Path(self.model, "config.json")
        if config.is_file():
            known = json.loads(config.read_text())
            words = min(known.get("text_config", known)["vocab_size"], WORDS.stop)
            self._words = range(min(WORDS.start, words // 2), words)
        self.service = tinker.ServiceClient(base_url=self.url, api_key=os.environ.get("SKYRL_TX_API_KEY", "tml-dummy"))
        self.client = await self.service.create_lora_training_client(self.model, rank=self.sizes.rank, seed=1)
        self._data = [datum(self._prompt(self.sizes.datum_tokens)) for _ in range(self.sizes.datums)]
        first_step = await self._step()
        self.sampler = await self._published()
        known = await self._sampler_state()
        return {
            "sampler": known.get("kind", "jax"),
            "version": known.get("version", ""),
            "first_step_sec": round(first_step, 2),
            "setup_sec": round(time.monotonic() - began, 2),
        }

    async def close(self) -> None:
        """Frees the adapter's slot for the next bench on this server."""
        body = {"model_id": self.client.model_id, "type": "unload_model"}
        await self._http.post(f"{self.url}/api/v1/unload_model", json=body)
        await self._http.aclose()

    # measures

    async def two_turns(self) -> dict[str, Any]:
        """Cold prompts, then the same conversations with more."""
        sizes, colds, seconds, cached = self.sizes, [], [], [0.0]
        for _ in range(self.warm + 1):
            prompts = [self._prompt(sizes.tokens) for _ in range(sizes.prompts)]
            took, answers, _ = await self._together(prompts)
            colds.append(took)
            prompts = [p + a.tokens + self._prompt(sizes.added) for p, a in zip(prompts, answers, strict=True)]
            took, _, share = await self._together(prompts)
            seconds.append(took)
            cached.append(share)
        return {
            "cold_sec": colds[-1],
            "turn_2_sec": seconds[-1],
            "turn_2_cached": cached[-1],
            "cold_all_sec": rounded(colds),
            "turn_2_all_sec": rounded(seconds),
        }

    async def wide(self) -> dict[str, Any]:
        """Twice as many prompts of a quarter of the length."""
        sizes, found, answers = self.sizes, [], []
        for _ in range(self.warm + 1):
            prompts = [self._prompt(sizes.tokens // 4) for _ in range(2 * sizes.prompts)]
            took, answers, _ = await self._together(prompts)
            found.append(took)
        rate = sum(len(answer.tokens) for answer in answers) / found[-1]
        return {"wide_sec": found[-1], "wide_all_sec": rounded(found), "wide_tokens_per_sec": rate}

    async def trials(self) -> dict[str, Any]:
        """`turn_ends_sec`: when the last trial has ended its turn 1, 2, ...: comparable with a run of fewer turns.

        `turn_compiled_sec`: how much of that the trainer's engine has compiled.
        """
        for _ in range(self.warm):
            await self._trials(self.sizes.turns if self.warm_trials else 1)
        before = await self._sampler_state()
        waits = await self._trials(self.sizes.turns)
        ends = self.reached["turn_ends_sec"]
        after = await self._sampler_state()
        return {
            "trials_sec": ends[-1],
            "turns_per_sec": self.sizes.trials * self.sizes.turns / ends[-1],
            "median_sample_sec": median(waits),
            "longest_sample_sec": max(waits),
            "cached": share_cached(before, after),
            **self.reached,
        }

    @property
    def warm_trials(self) -> bool:
        """Whether longer prompts compile: they do where the trainer's engine samples."""
        return self._kind == "jax"

    async def _trials(self, turns: int) -> list[float]:
        """Seconds of each sample; fills `reached`."""
        sizes, at_first = self.sizes, await self.compile_sec()
        ends, compiled, waits, left = [], [], [], [sizes.trials] * turns
        began, sampled = time.monotonic(), []
        stop = self._words[: 2 * len(self._words) // sizes.answer] if sizes.pause_ms else ()
        self.reached = {"turn_ends_sec": ends, "turn_compiled_sec": compiled}

        async def trial() -> None:
            prompt = self._prompt(sizes.first)
            for turn in range(turns):
                asked = time.monotonic()
                answer = await self._sample(prompt, stop=stop)
                waits.append(time.monotonic() - asked)
                left[turn] -= 1
                if not left[turn]:
                    ends.append(round(time.monotonic() - began, 2))
                    compiled.append(round(await self.compile_sec() - at_first, 2))
                sampled.append(len(answer.tokens))
                prompt = prompt + answer.tokens + self._prompt(sizes.grow - sizes.answer)
                await asyncio.sleep(self._random.random() * sizes.pause_ms / 1000)

        await asyncio.gather(*(trial() for _ in range(sizes.trials)))
        self.reached["sampled_tokens_per_sec"] = sum(sampled) / ends[-1]
        return waits

    async def trust(self) -> dict[str, Any]:
        """Sampled together at temperature 1 with the trainer's present weights, then computed by its pass."""
        self.sampler = await self._published()
        prompts = [self._prompt(self.sizes.first) for _ in range(self.sizes.trusted)]
        _, answers, _ = await self._together(prompts)
        texts = [[*prompt, *answer.tokens] for prompt, answer in zip(prompts, answers, strict=True)]
        output = await self.client.forward([datum(text) for text in texts], "cross_entropy")
        gaps = []
        for answer, result in zip(answers, output.loss_fn_outputs, strict=True):
            trained = np.asarray(result["logprobs"].data, float)[-len(answer.tokens) :]
            gaps.append(trained - np.asarray(answer.logprobs, float))
        found = agreement(np.concatenate(gaps))
        mean = fmean(value for answer in answers for value in answer.logprobs)
        return found | {"tokens": sum(map(len, gaps)), "mean_logprob": mean}

    async def publish(self) -> dict[str, Any]:
        """New weights' save to their first token. `parts`: medians of the client's and the server's own seconds."""
        found: list[dict[str, float]] = []
        for _ in range(self.sizes.publishes):
            await self._step(self._data[:1])
            before, began = await self._seconds(), time.monotonic()
            self._saves += 1
            saved = await self.client.save_weights_for_sampler(f"bench-{self._saves}")
            answered = time.monotonic()
            self.sampler = await self.service.create_sampling_client(model_path=saved.path)
            ready = time.monotonic()
            await self._sample(self._prompt(self.sizes.first // 4), 1)
            end, after = time.monotonic(), await self._seconds()
            parts = {"save": answered - began, "client": ready - answered, "first_token": end - ready}
            found.append(parts | {name: after[name] - before.get(name, 0.0) for name in after} | {"all": end - began})
        return {
            "publish_sec": median(one["all"] for one in found),
            "publish_all_sec": rounded([one["all"] for one in found]),
            "parts": {name: round(median(one[name] for one in found), 3) for name in found[0]},
        }

    async def _seconds(self) -> dict[str, float]:
        """What the server has counted of saves and loads of adapters so far."""
        answer = (await self._http.get(f"{self.url}/api/v1/healthz")).json()
        counted = (answer.get("load") or {}) | (answer.get("sampler") or {})
        return {name.removesuffix("_seconds"): counted[name] for name in PUBLISHING if name in counted}

    async def idle(self) -> dict[str, Any]:
        """Training while nobody samples: to be compared with the same of a server without vLLM on its GPU."""
        await self._step()
        seconds = [await self._step() for _ in range(self.sizes.steps)]
        return {"step_idle_sec": median(seconds), "steps": len(seconds), "idle_all_sec": rounded(seconds)}

    async def steps(self) -> dict[str, Any]:
        await self._step()
        idle = [await self._step() for _ in range(self.sizes.rounds)]
        async with self._sampling() as counted:
            began, busy = time.monotonic(), [await self._step() for _ in range(self.sizes.rounds)]
            tokens, seconds = sum(counted), time.monotonic() - began
        return {
            "step_idle_sec": median(idle),
            "step_sampling_sec": median(busy),
            "ratio": median(busy) / median(idle),
            "sampled_tokens_per_sec": tokens / seconds,
            "idle_all_sec": rounded(idle),
            "sampling_all_sec": rounded(busy),
        }

    async def kill(self, state: Path) -> dict[str, Any]:
        """Raises RuntimeError without a vLLM of this server."""
        prompts = [self._prompt(self.sizes.tokens // 4) for _ in range(self.sizes.prompts)]
        asked = [asyncio.create_task(self._sample(p, 4 * self.sizes.answer)) for p in prompts]
        flying = 0
        while flying < len(prompts) and not any(task.done() for task in asked):
            await asyncio.sleep(POLL_SEC)
            flying = (await self._sampler_state()).get("in_flight", 0)
        pid = engine_of(state)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        took = time.monotonic() - began
        wrong = [str(one)[:200] for one in answers if not isinstance(one, Answer)]
        ready = (await self._sampler_state()).get("replicas")
        return {
            "answered": len(answers) - len(wrong),
            "of": len(answers),
            "in_flight": flying,
            "kill_sec": took,
            "now": ready,
            "wrong": wrong[:3],
        }

    # parts

    def _prompt(self, tokens: int) -> list[int]:
        return self._random.choices(self._words, k=max(1, tokens))

    async def _sample(self, prompt: list[int], tokens: int | None = None, stop: Sequence[int] = ()) -> Answer:
        params = tinker.SamplingParams(max_tokens=tokens or self.sizes.answer, temperature=1.0, stop=list(stop))
        answer = (await self.sampler.sample(tinker.ModelInput.from_ints(prompt), 1, params)).sequences[0]
        if answer.logprobs is None:
            raise ValueError("a sample without log-probabilities")
        return Answer(list(answer.tokens), list(answer.logprobs))

    async def _together(self, prompts: list[list[int]]) -> tuple[float, list[Answer], float]:
        """Seconds until all are answered, the answers, and the share of their prompts that was read from the cache."""
        before, began = await self._sampler_state(), time.monotonic()
        answers = await asyncio.gather(*(self._sample(prompt) for prompt in prompts))
        took = time.monotonic() - began
        return took, answers, share_cached(before, await self._sampler_state())

    async def _step(self, data: list[tinker.Datum] | None = None) -> float:
        """Seconds of one pass and one optimizer step."""
        began = time.monotonic()
        passed = self.client.forward_backward(data or self._data, "cross_entropy")
        stepped = self.client.optim_step(ADAM)
        await passed
        await stepped
        return time.monotonic() - began

    async def _published(self) -> tinker.SamplingClient:
        self._saves += 1
        saved = await self.client.save_weights_for_sampler(f"bench-{self._saves}")
        return await self.service.create_sampling_client(model_path=saved.path)

    async def _sampler_state(self) -> dict[str, Any]:
        """What healthz says of the sampler; {} from a server that says nothing."""
        answer = (await self._http.get(f"{self.url}/api/v1/healthz")).json()
        found = answer.get("sampler") or {}
        self._kind = found.get("kind", "jax")
        return found

    async def compile_sec(self) -> float:
        """Seconds that the trainer's engine has compiled so far; 0 from a server that does not say."""
        answer = (await self._http.get(f"{self.url}/api/v1/healthz")).json()
        return float((answer.get("load") or {}).get("compile_seconds", 0.0))

    @asynccontextmanager
    async def _sampling(self) -> AsyncIterator[list[int]]:
        """`prompts` samples are computed at any time within the block; the list has the tokens of each answered one."""
        counted: list[int] = []

        async def one() -> None:
            while True:
                counted.append(len((await self._sample(self._prompt(self.sizes.first))).tokens))

        tasks = [asyncio.create_task(one()) for _ in range(self.sizes.prompts)]
        try:
            yield counted
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def rounded(seconds: Sequence[float]) -> list[float]:
    return [round(one, 3) for one in seconds]


def share_cached(before: dict[str, Any], after: dict[str, Any]) -> float:
    asked = after.get("prompt_tokens", 0) - before.get("prompt_tokens", 0)
    return (after.get("cached_tokens", 0) - before.get("cached_tokens", 0)) / asked if asked else 0.0


def processes() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), folder.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue


def engine_of(state: Path) -> int:
    """vLLM's engine process, or its API where both are one, of a server's first replica. Raises RuntimeError."""
    url = json.loads(Path(state, "vllm.json").read_text())[0]["url"]
    port = url.rpartition(":")[2]
    found = dict(processes())
    apis = [
        pid
        for pid, words in found.items()
        if "--served-model-name" in words and port in words and os.getpgid(pid) == pid
    ]
    if not apis:
        raise RuntimeError(f"no process of vLLM at {url}")
    group = [pid for pid in found if pid not in apis and _group(pid) == apis[0] and "EngineCore" in found[pid][0]]
    return (group or apis)[0]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1
