"""How long a pass of the server's engine takes and what memory it needs, without API, clients or trials.

    server/.venv/bin/python -m scripts.gpu.passes MODEL [--long 8192,131072] [--steps 8x4096] [--out FILE]

`long`: one datum of so many tokens, forward_backward and optim_step, a second time without compiling. `steps`: a step
of DATUMSxTOKENS for each pair of --pass-tokens and --kept-gib (repairs engine_shapes, engine_blocks), the best of
three. `score`: one prompt scored. Each result is a JSON line on the screen and in --out; nothing begins after
--seconds.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "server")]
sys.path.append(str(ROOT / "server" / "shims"))
GIB = 1 << 30


class Meter:
    """An engine with one adapter, and lines of results."""

    def __init__(self, given: argparse.Namespace, seats: int = 1) -> None:
        import jax

        import repairs

        repairs.apply("engine", repairs.NAMES)
        from skyrl.backends import jax as backend
        from skyrl.tinker import types

        self.jax, self.types, self.given, self.began = jax, types, given, time.monotonic()
        settings = {"max_lora_adapters": 3, "max_lora_rank": given.rank, "gradient_checkpointing": True}
        settings |= {"train_micro_batch_size": 0, "sample_max_num_sequences": seats}
        self.engine = backend.JaxBackendImpl(given.model, backend.JaxBackendConfig(**settings), 0)
        self.engine.create_model("m", types.LoraConfig(rank=given.rank, alpha=32.0, seed=1))
        self.words = self.engine.model_config.get_config().vocab_size
        device = jax.devices()[0]
        self.note({"measure": "setup", "device": device.device_kind, "jax": jax.__version__, **self.memory()})

    def note(self, line: dict[str, Any]) -> None:
        text = json.dumps({"at_sec": round(time.monotonic() - self.began, 1), **line})
        print(text, flush=True)
        if self.given.out:
            with Path(self.given.out).open("a") as out:
                out.write(text + "\n")

    def late(self) -> bool:
        return time.monotonic() - self.began > self.given.seconds

    def memory(self) -> dict[str, float]:
        """GiB of the device: used now, most so far, and what JAX may take."""
        stats = self.jax.local_devices()[0].memory_stats() or {}
        names = {"used_gib": "bytes_in_use", "peak_gib": "peak_bytes_in_use", "limit_gib": "bytes_limit"}
        return {name: round(stats[key] / GIB, 2) for name, key in names.items() if key in stats}

    def batch(self, datums: int, tokens: int) -> Any:
        rng = np.random.default_rng(0)
        ids = rng.integers(5, self.words, (datums, tokens + 1))
        inputs = [self.types.ModelInput(chunks=[self.types.EncodedTextChunk(tokens=row[:-1].tolist())]) for row in ids]
        lists: dict[str, list] = {"all_model_ids": ["m"], "all_loss_fns": ["importance_sampling"]}
        lists = {name: value * datums for name, value in (lists | {"all_loss_fn_configs": [None]}).items()}
        numbers = {"token_weights": 1.0, "sampling_logprobs": -12.0, "advantages": 1e-3}
        lists |= {f"all_{name}": [[value] * tokens] * datums for name, value in numbers.items()}
        lists |= {f"all_{name}": [[]] * datums for name in ("values", "returns", "rollout_logprobs")}
        lists |= {"all_targets": ids[:, 1:].tolist(), "all_model_inputs": inputs}
        return self.types.PreparedModelPassBatch(**lists, request_batch_slices=[("r", "m", 0, datums)])

    def step(self, batch: Any) -> tuple[float, float]:
        """Seconds of forward_backward and optim_step; the sum of the losses."""
        began = time.monotonic()
        result = self.engine.forward_backward(batch)["r"]
        adam = self.types.AdamParams(learning_rate=1e-5, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0)
        self.engine.optim_step("m", self.types.OptimStepInput(adam_params=adam))
        return time.monotonic() - began, result.metrics["loss:sum"]

    def attempt(self, line: dict[str, Any], compute: Any) -> None:
        """Notes what `compute` finds, or how it fails."""
        if self.late():
            return self.note(line | {"left_out": "no time is left"})
        try:
            found = compute()
        except (RuntimeError, ValueError) as error:
            found = {"failed": str(error)[:300]}
        self.note(line | found | self.memory())

    def long(self, tokens: int) -> dict[str, Any]:
        batch = self.batch(1, tokens)
        first, _ = self.step(batch)
        again, loss = self.step(batch)
        return {"first_sec": first, "again_sec": again, "tokens_per_sec": tokens / again, "loss": loss}

    def steps(self, datums: int, tokens: int) -> dict[str, Any]:
        batch = self.batch(datums, tokens)
        first, _ = self.step(batch)
        runs = [self.step(batch) for _ in range(3)]
        best = min(seconds for seconds, _ in runs)
        return {"first_sec": first, "best_sec": best, "tokens_per_sec": datums * tokens / best, "loss": runs[0][1]}

    def score(self, tokens: int) -> dict[str, Any]:
        one = self.types.SamplingParams(temperature=1.0, max_tokens=1, seed=3)
        none, inputs = [""], self.batch(1, tokens).all_model_inputs
        batch = self.types.PreparedSampleBatch(
            all_model_inputs=inputs, all_sampling_params=[one], all_model_ids=none, all_checkpoint_ids=none,
            all_checkpoint_paths=none, all_session_ids=[None], needs_prompt_logprobs=True,
            request_batch_slices=[("r", "", 0, 1, True, 0)],
        )  # fmt: skip
        seconds = []
        for _ in range(2):
            began = time.monotonic()
            self.engine.sample(batch)
            seconds.append(time.monotonic() - began)
        return {"first_sec": seconds[0], "again_sec": seconds[1]}


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--long", type=numbers, default=[])
    parser.add_argument("--score", type=numbers, default=[])
    parser.add_argument("--on-device", type=numbers, default=[], help="as --long, nothing kept in the host's memory")
    parser.add_argument("--steps", default="")
    parser.add_argument("--pass-tokens", type=numbers, default=[])
    parser.add_argument("--kept-gib", type=numbers, default=[])
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--out", default="")
    given = parser.parse_args()
    meter = Meter(given)
    from repairs import engine_blocks, engine_shapes

    known = engine_blocks.keeping
    for size in filter(None, given.steps.split(",")):
        datums, tokens = map(int, size.split("x"))
        for most, kept in zip(given.pass_tokens, given.kept_gib, strict=True):
            engine_shapes.pass_tokens = most
            engine_blocks.keeping = known._replace(free=kept * GIB, per_token=0.0)
            meter.engine._create_loss_and_grad_fn()  # traced with these
            line = {"measure": "steps", "size": size, "pass_tokens": most, "kept_gib": kept}
            meter.attempt(line, lambda datums=datums, tokens=tokens: meter.steps(datums, tokens))
    for tokens in given.score:
        meter.attempt({"measure": "score", "tokens": tokens}, lambda tokens=tokens: meter.score(tokens))
    engine_blocks.keeping = known
    meter.engine._create_loss_and_grad_fn()
    for tokens in given.long:
        meter.attempt({"measure": "long", "tokens": tokens}, lambda tokens=tokens: meter.long(tokens))
    if given.on_device:
        engine_blocks.keeping = known._replace(host=0)
        meter.engine._create_loss_and_grad_fn()
    for tokens in given.on_device:
        meter.attempt({"measure": "on device", "tokens": tokens}, lambda tokens=tokens: meter.long(tokens))


if __name__ == "__main__":
    main()
