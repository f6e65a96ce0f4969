"""Random requests of the whole API under a memory limit: sizes, shapes, faults, orders, and clients that leave.

    python -m bench.server_fuzz FOLDER [--seed 0] [--requests 300] [--rounds 4] [--dtype float32] [--limit-gib 4]
        [--context 512]

Clients of their own sessions send them at once, in rounds of the same requests: the first ones compile programs, which
take memory. Exits with 1 where the engine ended, a request has no answer, the limit was passed, or the memory has grown
by more than MOST_GROWTH in the last round.
"""

import argparse
import contextlib
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import tinker

from scripts.models import tiny_model
from tests.conftest import MODEL
from tests.support.server_parts import Raw
from tests.support.small_server import Server, processes_of

CLIENTS, MODELS = 4, 2  # models of a client; the server has slots for fewer
MOST_GROWTH = 0.05
ANSWER_SEC = 1800.0  # a slow machine compiles for minutes; what is lost is never answered
VOCABULARY = 256
LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "unheard_of")
ANSWERS = (1, 8, 40)  # tokens; each other limit is a program of its own
LEAVES = 0.15  # of the requests: nobody asks for the result


@dataclass
class Count:
    """What became of the requests, by status; `lost`: those without an answer."""

    answers: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, status: int) -> None:
        with self.lock:
            self.answers[status] += 1


class Client:
    """One session; every choice is that of `rng`."""

    def __init__(self, server: Server, model: Path, context: int, rng: random.Random, count: Count) -> None:
        self.server, self.model, self.context, self.rng, self.count = server, model, context, rng, count
        self.raw = Raw(server.url, model)
        self.samplers: list[str] = []
        self.names = 0

    def run(self, requests: int) -> None:
        for _ in range(requests):
            kinds: list[Callable[[], httpx.Response]] = [self.train] * 4 + [self.sample] * 5 + [self.step] * 2
            kinds += [self.save, self.publish, self.load, self.create, self.nonsense, self.leave]
            kind = self.rng.choice(kinds) if self.raw.models else self.create
            try:
                self.ask(kind.__name__, kind)
            except (httpx.HTTPError, TimeoutError) as error:
                self.count.lost.append(f"{kind.__name__}: {type(error).__name__} {error}")
        self.raw.unload()

    def ask(self, name: str, kind: Callable[[], httpx.Response]) -> None:
        """Sends it, and asks for its result, unless the client leaves first."""
        answer = kind()
        request_id = answer.json().get("request_id") if answer.is_success else None
        end = time.monotonic() + ANSWER_SEC
        while request_id is not None and self.rng.random() >= LEAVES:
            answer = self.raw.post("retrieve_future", request_id=request_id)
            if answer.status_code != httpx.codes.REQUEST_TIMEOUT:
                break
            if time.monotonic() > end:
                raise TimeoutError(f"no result of request {request_id}")
        self.count.add(answer.status_code)
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            self.count.lost.append(f"{name}: {answer.status_code} {answer.text[:200]}")

    def tokens(self) -> list[int]:
        """Also none, and more than the context."""
        most = self.rng.choice((2, 33, 130, self.context // 2, self.context, self.context + 8))
        return [self.rng.randrange(VOCABULARY) for _ in range(self.rng.randint(0 if most == 2 else 1, most))]

    def model_id(self) -> str:
        return self.rng.choice([*self.raw.models, *self.raw.models, "none:train:0"])

    def create(self) -> httpx.Response:
        if len(self.raw.models) == MODELS:
            return self.raw.post("unload_model", model_id=self.raw.models.pop(0))
        self.names += 1
        self.raw.models.append(f"{self.raw.session_id}:train:{self.names}")
        lora = {"rank": self.rng.choice((1, 8)), "seed": 1}
        of = {"session_id": self.raw.session_id, "model_seq_id": self.names, "base_model": str(self.model)}
        return self.raw.post("create_model", **of, lora_config=lora)

    def train(self) -> httpx.Response:
        loss = self.rng.choice(LOSSES)
        data = [self.datum(loss) for _ in range(self.rng.choice((1, 1, 2, 5)))]
        return self.raw.train(self.model_id(), data, loss, forward_only=self.rng.random() < 0.3)

    def datum(self, loss: str) -> tinker.Datum:
        tokens = self.tokens()
        wrong = self.rng.random() < 0.1
        count = len(tokens) + (1 if wrong else 0)
        names = ("weights",) if loss == "cross_entropy" else ("logprobs", "advantages")
        inputs: Any = {name: np.array([self.rng.uniform(-3, 0) for _ in range(count)], np.float32) for name in names}
        inputs["target_tokens"] = np.array([self.rng.randrange(VOCABULARY) for _ in tokens], np.int64)
        return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)

    def step(self) -> httpx.Response:
        rate = self.rng.choice((0.0, 1e-4, 1e-2, 1e30))
        return self.raw.post("optim_step", model_id=self.model_id(), adam_params={"learning_rate": rate}, seq_id=None)

    def sample(self) -> httpx.Response:
        params = {"max_tokens": self.rng.choice(ANSWERS), "temperature": self.rng.choice((0.0, 0.7, 1.0, -1.0))}
        params |= {"seed": self.rng.randrange(99)} if self.rng.random() < 0.5 else {}
        of: dict[str, Any] = {"base_model": str(self.model)}
        if self.samplers and self.rng.random() < 0.5:
            of = {"model_path": self.rng.choice(self.samplers)}
        tokens = self.tokens()
        prompt = {"chunks": [{"type": "encoded_text", "tokens": tokens}]}
        if self.rng.random() < 0.1:
            of["target_prompt_logprobs"] = self.targets(len(tokens) - 1)
        scored = self.rng.random() < 0.4
        samples = self.rng.choice((1, 1, 1, 3, 8))
        return self.raw.post(
            "asample", prompt=prompt, sampling_params=params, num_samples=samples, prompt_logprobs=scored, **of
        )

    def targets(self, places: int) -> dict[str, Any]:
        """Two named tokens for each place of a prompt but its last; none for one more, at times."""
        wrong = self.rng.random() < 0.2
        ids = [self.rng.randrange(-1, VOCABULARY) for _ in range(2 * places)]
        return {"data": ids, "dtype": "int64", "shape": [places + wrong, 2]}

    def save(self) -> httpx.Response:
        self.names += 1
        return self.raw.post("save_weights", model_id=self.model_id(), path=f"state-{self.names}", ttl_seconds=60)

    def publish(self) -> httpx.Response:
        self.names += 1
        model_id, name = self.model_id(), f"sampler-{self.names}"
        self.samplers = [*self.samplers[-2:], f"tinker://{model_id}/sampler_weights/{name}"]
        return self.raw.post("save_weights_for_sampler", model_id=model_id, path=name, ttl_seconds=60)

    def load(self) -> httpx.Response:
        path = f"tinker://{self.model_id()}/weights/state-{self.rng.randint(1, self.names + 1)}"
        return self.raw.post("load_weights", model_id=self.model_id(), path=path, optimizer=True)

    def nonsense(self) -> httpx.Response:
        path, body = self.rng.choice(
            [
                ("retrieve_future", {"request_id": str(self.rng.randrange(10**9, 10**10))}),
                ("asample", {"prompt": None}),
                ("forward_backward", {"model_id": 3}),
                ("weights_info", {"tinker_path": "tinker://a/b"}),
            ]
        )
        return self.raw.post(path, **body)

    def leave(self) -> httpx.Response:
        """Goes away in the middle of a request, or ends its session and opens another."""
        if self.rng.random() < 0.5:
            with contextlib.suppress(httpx.TimeoutException):
                self.raw.http.post("/asample", json={"prompt": [1] * 10**5}, timeout=0.001)
        else:
            self.raw.post(f"sessions/{self.raw.session_id}/finish", reason={"type": "success"})
            self.raw, self.samplers = Raw(self.server.url, self.model), []
        return self.raw.http.get("/healthz")


def round_of(server: Server, model: Path, args: argparse.Namespace) -> Count:
    count = Count()
    rngs = [random.Random(1000 * args.seed + number) for number in range(CLIENTS)]
    clients = [Client(server, model, args.context, rng, count) for rng in rngs]
    with ThreadPoolExecutor() as threads:
        for ended in [threads.submit(client.run, args.requests // CLIENTS) for client in clients]:
            ended.result()
    return count


def memory(server: Server, name: str) -> float:
    """GiB of API and engine: VmRSS, or VmHWM, the most that it was."""
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in processes_of(server.state)]
    return sum(int(text.split(f"{name}:")[1].split()[0]) for text in statuses) / 2**20


def compiled(server: Server) -> int:
    """Programs so far: whatever is new in its shape takes memory, and is kept."""
    load = httpx.get(f"{server.url}/api/v1/healthz", timeout=ANSWER_SEC).json()["load"]
    return load["compiles"] + load["compiles_cached"]


def settled(server: Server) -> float:
    """GiB when nothing waits any more: a request that is answered came after all others."""
    raw = Raw(server.url, server.model)
    raw.settle(raw.sample([1, 2, 3], max_tokens=1)).raise_for_status()
    return memory(server, "VmRSS")


def fuzz(args: argparse.Namespace) -> list[str]:
    """What was wrong."""
    model = args.folder / f"model-{args.dtype}"
    if not model.exists():
        tiny_model.write(MODEL, model, "qwen3", args.dtype)
    backend = f'{{"memory_limit_gib": {args.limit_gib}}}'
    server = Server(args.folder / f"server-{args.dtype}", "--backend-config", backend, model=model)
    server.start(
        SKYRL_TX_CONTEXT_LIMIT=str(args.context),
        MAX_LORA_ADAPTERS=str(CLIENTS + 2),
        SESSION_TIMEOUT="600",
        SKYRL_TX_KEEP_SEC="30",
    )
    try:
        pids, found, sizes = processes_of(server.state), [], []
        for number in range(1, args.rounds + 1):
            began, count = time.monotonic(), round_of(server, model, args)
            sizes.append(settled(server))
            seconds = time.monotonic() - began
            answers = dict(sorted(count.answers.items()))
            print(f"round {number}: {answers} in {seconds:.0f} s, {sizes[-1]:.2f} GiB, {compiled(server)} programs")
            found += count.lost
        print(f"the most: {memory(server, 'VmHWM'):.2f} GiB")
        found += ["a process has ended"] if processes_of(server.state) != pids else []
        if sizes[-1] > sizes[-2] * (1 + MOST_GROWTH):
            found.append(f"memory grew from {sizes[-2]:.2f} to {sizes[-1]:.2f} GiB")
        found += ["beyond the limit"] if memory(server, "VmHWM") > args.limit_gib else []
    finally:
        server.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench.server_fuzz", description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--limit-gib", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--context", type=int, default=512)
    wrong = fuzz(parser.parse_args())
    if wrong:
        sys.exit("\n".join(["wrong:", *wrong]))


if __name__ == "__main__":
    main()
