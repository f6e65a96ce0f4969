#!/usr/bin/env python3
"""Connection test of a self-hosted Tinker API server: scripts/test_skyrl_tx.py [URL] [MODEL]

URL defaults to the environment's SKYRL_TX_URL, else http://127.0.0.1:8000; MODEL to the first that the server names.
Runs each call that training needs, once and small, in a LoRA slot that it gives back. Exits with 1 at the first failed
one, with the cause and what to do about it. A first call compiles for seconds, with a large model for minutes.
"""

import importlib.util
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # about missing torch, which is not used
VENV = Path(__file__).resolve().parents[1] / ".venv"

if any(
    importlib.util.find_spec(name) is None for name in ("harbortrainer", "httpx", "tinker")
):  # the machine's own Python runs it
    python = str(VENV / "bin/python")
    if sys.executable == python or not os.access(python, os.X_OK):
        sys.exit("the trainer environment .venv is missing or broken; run scripts/setup.sh")
    os.execv(python, [python, *sys.argv])

import httpx  # noqa: E402 - the check comes first

from harbortrainer.commands import fitted  # noqa: E402

TEXT = "The answer to 2 plus 3 is 5."
# Of this form, as the SDK requires. The server checks it only if it was started with one; it never gets Tinker's.
KEY = os.environ.get("SKYRL_TX_API_KEY") or "tml-none"
START = fitted("start the server: scripts/start_skyrl_tx.sh MODEL 1")
LOG = f"see the server's log: {os.path.relpath(VENV.parent / '.state')}/server-PORT/server.log"
# seconds allowed for what the API answers itself, and for what the engine computes
SHORT, LONG = 60.0, 600.0


class StepError(Exception):
    """A step that failed: cause and fix in one line."""


@dataclass
class Connection:
    url: str
    model: str | None
    service: Any = None
    training: Any = None
    tokens_T: list[int] = field(default_factory=list)
    sampler_path: str = ""

    def health(self) -> str:
        try:
            answer = httpx.get(f"{self.url}/api/v1/healthz", timeout=5)
        except httpx.UnsupportedProtocol:
            raise StepError(f"{self.url!r} is no URL; give one like http://localhost:8000") from None
        except httpx.ConnectError as error:
            raise StepError(f"nothing listens at {self.url} ({error}); {START}") from error
        except httpx.TimeoutException as error:
            raise StepError(f"{self.url} did not answer within 5 s; is it the right port? else {START}") from error
        if answer.status_code != 200:
            raise StepError(
                f"{self.url}/api/v1/healthz answered {answer.status_code}: not a Tinker API server; check the port"
            )
        return self.url

    def capabilities(self) -> str:
        import tinker

        self.service = tinker.ServiceClient(base_url=self.url, api_key=KEY)
        answer = tinker.RestClient(base_url=self.url, api_key=KEY).get_server_capabilities().result()
        names = [model.model_name for model in answer.supported_models]
        if not names:
            raise StepError(f"the server names no model; {START}")
        if self.model not in (None, *names):
            raise StepError(f"it serves {', '.join(map(str, names))}, not {self.model}; {START}")
        self.model = self.model or names[0]
        return f"serves {self.model}"

    def lora_client(self) -> str:
        self.training = self.service.create_lora_training_client(self.model, rank=4).result()
        return self.training.model_id

    def tokenizer(self) -> str:
        tokenizer = self.training.get_tokenizer()
        self.tokens_T = tokenizer.encode(TEXT)
        return f"{len(tokenizer)} tokens; {TEXT!r} is {len(self.tokens_T)}"

    def train_step(self) -> str:
        import tinker

        targets_T = self.tokens_T[1:]
        datum = tinker.Datum(
            model_input=tinker.ModelInput.from_ints(self.tokens_T[:-1]),
            loss_fn_inputs={"target_tokens": targets_T, "weights": [1.0] * len(targets_T)},  # type: ignore[arg-type]
        )
        computed = self.training.forward_backward([datum], "cross_entropy")
        stepped = self.training.optim_step(tinker.AdamParams(learning_rate=1e-4))
        logprobs_T = computed.result().loss_fn_outputs[0]["logprobs"].data
        stepped.result()
        return f"nats a token: {-sum(logprobs_T) / len(logprobs_T):.3f}"

    def save_weights(self) -> str:
        self.sampler_path = self.training.save_weights_for_sampler("connection-test").result().path
        return self.sampler_path

    def sample(self) -> str:
        import tinker

        client = self.service.create_sampling_client(model_path=self.sampler_path).result()
        params = tinker.SamplingParams(max_tokens=8, temperature=1.0, seed=0)
        sequence = (
            client.sample(tinker.ModelInput.from_ints(self.tokens_T), num_samples=1, sampling_params=params)
            .result()
            .sequences[0]
        )
        return f"{len(sequence.tokens)} tokens, {len(sequence.logprobs or [])} logprobs"

    def unload(self) -> str:
        """The SDK has no call for it; without it the slot stays taken until the session times out."""
        httpx.post(
            f"{self.url}/api/v1/unload_model", json={"model_id": self.training.model_id}, headers={"X-API-Key": KEY}
        ).raise_for_status()
        return self.training.model_id


def advice(error: Exception) -> str:
    """Turns an error of the SDK into one line: its cause, and a fix where one is known."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "Maximum number of LoRA adapters" in text:
        return f"{text}; stop other clients and wait a minute, or start the server with a larger MAX_LORA_ADAPTERS"
    if "LoRA rank" in text:
        return f"{text}; start the server with a larger MAX_LORA_RANK"
    if "tokenizer" in text.lower():
        return f"{text}; run this where MODEL's directory can be read under the same name (the repository)"
    return f"{type(error).__name__}: {text}; {LOG}"


def run_step(name: str, action: Callable[[], str], limit_sec: float) -> bool:
    """Runs one step and prints its result and time; returns whether it succeeded."""
    outcome: queue.Queue[tuple[bool, str]] = queue.Queue()

    def work() -> None:
        try:
            outcome.put((True, action()))
        except StepError as error:
            outcome.put((False, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever a step raises is its printed result
            outcome.put((False, advice(error)))

    began = time.monotonic()
    threading.Thread(target=work, daemon=True).start()
    try:
        ok, text = outcome.get(timeout=limit_sec)
    except queue.Empty:
        ok, text = False, f"no answer within {limit_sec:g} s; is the engine alive? {LOG}"
    print(f"{'ok  ' if ok else 'FAIL'}  {name:<22} {time.monotonic() - began:7.2f} s   {text}", flush=True)
    return ok


def run_all(connection: Connection) -> bool:
    steps: list[tuple[str, Callable[[], str], float]] = [
        ("health", connection.health, SHORT),
        ("capabilities", connection.capabilities, SHORT),
        ("create LoRA client", connection.lora_client, LONG),
        ("tokenizer", connection.tokenizer, SHORT),
        ("training step", connection.train_step, LONG),
        ("save sampler weights", connection.save_weights, LONG),
        ("sample", connection.sample, LONG),
    ]
    ok = all(run_step(*step) for step in steps)
    if connection.training is not None:
        ok = run_step("unload", connection.unload, SHORT) and ok
    return ok


def main() -> int:
    if len(sys.argv) > 3 or any(argument.startswith("-") for argument in sys.argv[1:]):
        print(fitted(__doc__ or ""))
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    logging.getLogger("tinker").setLevel(logging.ERROR)
    url, model = [*sys.argv[1:], None, None][:2]
    url = url or os.environ.get("SKYRL_TX_URL") or "http://127.0.0.1:8000"
    return 0 if run_all(Connection(url.rstrip("/"), model)) else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the SDK's threads, or a step that hangs, must not hold the process
