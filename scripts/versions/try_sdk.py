"""One version of the tinker SDK against one server: try_sdk.py URL. Prints what works as one line of JSON.

Runs in an environment that holds nothing but that SDK, so it uses only what every version of it has. Each step has its
own limit; a step that needs one which failed is left out. Slots of the server are given back.
"""

import importlib.metadata
import json
import logging
import os
import queue
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable
from typing import Any

LIMIT_SEC = 90.0  # a step's; a first call compiles for seconds
PROMPT = list(range(5, 29))
NEEDS = {
    "train": ["create"],
    "save": ["create"],
    "sample": ["create"],
    "restore": ["save"],
    "list": ["save"],
    "delete": ["list"],
}


class Session:
    """The clients of one run of the steps."""

    def __init__(self, url: str) -> None:
        import tinker

        self.url = url
        self.tinker: Any = tinker
        self.service: Any = tinker.ServiceClient(base_url=url, api_key="tml-none")
        self.models: list[str] = []
        self.path = ""

    def create(self) -> str:
        name = self.service.get_server_capabilities().supported_models[0].model_name
        self.training = self.keep(settled(self.service.create_lora_training_client(base_model=name, rank=4)))
        return self.models[0]

    def train(self) -> str:
        logprobs = [self.step(self.training) for _ in range(2)]
        if not logprobs[1] > logprobs[0]:
            raise AssertionError(f"a step did not raise the summed logprob: {logprobs}")
        return "summed logprob {:.3f} -> {:.3f}".format(*logprobs)

    def sample(self) -> str:
        client = settled(self.training.save_weights_and_get_sampling_client("try"))
        params = self.tinker.SamplingParams(max_tokens=4, temperature=1.0, seed=0)
        prompt = self.tinker.ModelInput.from_ints(PROMPT)
        sequence = client.sample(prompt, num_samples=1, sampling_params=params).result().sequences[0]
        if len(sequence.logprobs or []) != len(sequence.tokens):
            raise AssertionError(f"{sequence.logprobs} are the logprobs of {len(sequence.tokens)} tokens")
        return f"{len(sequence.tokens)} tokens with logprobs"

    def save(self) -> str:
        self.path = self.training.save_state("try").result().path
        return self.path

    def restore(self) -> str:
        restored = self.service.create_training_client_from_state_with_optimizer(self.path)
        both = [self.step(client) and self.step(client) for client in (self.training, self.keep(settled(restored)))]
        if abs(both[0] - both[1]) > 1e-3:
            raise AssertionError(f"the next step differs: {both[0]} and {both[1]}")
        return f"the next step is the same: {both[0]:.4f}"

    def list(self) -> str:
        found = [c.tinker_path for c in self.rest().list_checkpoints(self.models[0]).result().checkpoints]
        if self.path not in found:
            raise AssertionError(f"{self.path} is not among {found}")
        return f"{len(found)} checkpoints"

    def delete(self) -> str:
        self.rest().delete_checkpoint_from_tinker_path(self.path).result()
        return self.path

    def rest(self) -> Any:
        return self.service.create_rest_client()

    def step(self, client: Any) -> float:
        """Summed logprob before one optimizer step on PROMPT."""
        tensor, targets = self.tinker.TensorData, PROMPT[1:]
        inputs = {
            "target_tokens": tensor(data=targets, dtype="int64", shape=[len(targets)]),
            "weights": tensor(data=[1.0] * len(targets), dtype="float32", shape=[len(targets)]),
        }
        datum = self.tinker.Datum(model_input=self.tinker.ModelInput.from_ints(PROMPT[:-1]), loss_fn_inputs=inputs)
        computed = client.forward_backward([datum], "cross_entropy")
        stepped = client.optim_step(self.tinker.AdamParams(learning_rate=1e-3))
        logprobs = computed.result().loss_fn_outputs[0]["logprobs"].data
        stepped.result()
        return float(sum(logprobs))

    def keep(self, client: Any) -> Any:
        self.models.append(client.model_id)
        return client

    def unload(self) -> None:
        for model in self.models:
            body = json.dumps({"model_id": model}).encode()
            request = urllib.request.Request(
                f"{self.url}/api/v1/unload_model", body, {"Content-Type": "application/json"}
            )
            urllib.request.urlopen(request, timeout=10).close()


def settled(client: Any) -> Any:
    """A client; newer versions return a future of it."""
    return client.result() if hasattr(client, "result") else client


def within_limit(action: Callable[[], str]) -> tuple[bool, str]:
    """Whether it worked, and what it said or the first line of its error."""
    outcome: queue.Queue[tuple[bool, str]] = queue.Queue()

    def work() -> None:
        try:
            outcome.put((True, action()))
        except BaseException as error:  # noqa: BLE001 - whatever a version raises is its result
            outcome.put((False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))

    threading.Thread(target=work, daemon=True).start()
    try:
        return outcome.get(timeout=LIMIT_SEC)
    except queue.Empty:
        return False, f"no answer within {LIMIT_SEC:g} s"


def try_all(url: str) -> dict[str, dict[str, Any]]:
    """Step -> ok, text, seconds; ok is None for a step left out."""
    results: dict[str, dict[str, Any]] = {}
    opened: list[Session] = []

    def connect() -> str:
        opened.append(Session(url))
        return url

    for name in ("connect", "create", "train", "sample", "save", "restore", "list", "delete"):
        missing = [need for need in NEEDS.get(name, ["connect"] * (name != "connect")) if not results[need]["ok"]]
        began = time.monotonic()
        ok, text = (
            (None, f"left out: {missing[0]}")
            if missing
            else within_limit(connect if name == "connect" else getattr(opened[0], name))
        )
        results[name] = {"ok": ok, "text": text, "seconds": round(time.monotonic() - began, 1)}
    if opened:
        within_limit(lambda: str(opened[0].unload()))
    return results


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    os.environ["TINKER_TELEMETRY"] = "0"
    print(json.dumps({"sdk": importlib.metadata.version("tinker"), "steps": try_all(sys.argv[1])}), flush=True)
    os._exit(0)  # the SDK's threads, or a step that hangs, must not hold the process


if __name__ == "__main__":
    main()
