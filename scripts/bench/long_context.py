"""How long a context a running server takes: long_context.py URL LENGTH [LENGTH ...]

At each length one datum is trained on (forward_backward and optim_step) and 16 tokens are sampled after a prompt of the
rest. Prints a Markdown row for each: seconds of the first call, which compiles, and of the second; memory in use. A
failure is printed in the row and the longer lengths are tried all the same, unless the server has died.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import tinker

ANSWER = 16
LIMIT_SEC = 240.0  # of one call; the SDK itself would retry for longer


def timed(action: Callable[[], object]) -> str:
    """Seconds, or what went wrong in one line."""
    outcome: list[str] = []

    def work() -> None:
        began = time.monotonic()
        try:
            action()
            outcome.append(f"{time.monotonic() - began:.1f}")
        except (tinker.TinkerError, ValueError, TimeoutError) as error:
            outcome.append(" ".join(str(error).split())[:160])

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIMIT_SEC)
    return outcome[0] if outcome else f"no answer in {LIMIT_SEC:g} s"


def memory() -> str:
    """GiB in use: of the first GPU, else of the server's engine (resident, and its peak)."""
    try:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
        return f"{int(subprocess.check_output(query, text=True)) / 1024:.1f} (GPU)"
    except (OSError, subprocess.CalledProcessError):
        return engine_memory()


def engine_memory() -> str:
    """Of the one server that runs here."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"--run-engine" not in (process / "cmdline").read_bytes():
                continue
            fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        except OSError:  # it ended meanwhile
            continue
        now, peak = (int(fields[name].split()[0]) / 2**20 for name in ("VmRSS", "VmHWM"))
        return f"{now:.1f}, peak {peak:.1f}"
    return "-"


def datum(length: int) -> tinker.Datum:
    tokens = [5 + index % 200 for index in range(length + 1)]
    inputs = {
        "target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64", shape=[length]),
        "weights": tinker.TensorData(data=[1.0] * length, dtype="float32", shape=[length]),
    }
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def train(client: tinker.TrainingClient, length: int) -> None:
    computed = client.forward_backward([datum(length)], "cross_entropy")
    stepped = client.optim_step(tinker.AdamParams(learning_rate=1e-4))
    computed.result(timeout=LIMIT_SEC)
    stepped.result(timeout=LIMIT_SEC)


def sample(client: tinker.SamplingClient, length: int) -> None:
    prompt = tinker.ModelInput.from_ints([5 + index % 200 for index in range(length - ANSWER)])
    params = tinker.SamplingParams(max_tokens=ANSWER, temperature=1.0, seed=1)
    client.sample(prompt, num_samples=1, sampling_params=params).result(timeout=LIMIT_SEC)


def main(url: str, lengths: list[int]) -> None:
    service = tinker.ServiceClient(base_url=url, api_key="tml-none")
    model = service.get_server_capabilities().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=str(model), rank=8)
    training = training.result() if not isinstance(training, tinker.TrainingClient) else training
    sampler = training.save_weights_and_get_sampling_client()
    sampler = sampler.result() if not isinstance(sampler, tinker.SamplingClient) else sampler
    print("| tokens | training step, first / second (s) | sample, first / second (s) | memory (GiB) |")
    print("| --- | --- | --- | --- |", flush=True)
    for length in lengths:
        cells = []
        for action in (lambda size=length: sample(sampler, size), lambda size=length: train(training, size)):
            first = timed(action)
            again = timed(action) if first.replace(".", "").isdigit() else ""
            cells.append(f"{first} / {again}" if again else first)
        print(f"| {length} | {cells[1]} | {cells[0]} | {memory()} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [int(length) for length in sys.argv[2:]])
