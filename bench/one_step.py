"""One GRPO update of a fresh adapter, the same on any server: what tensor parallelism or a dtype changes.

    python -m bench.one_step run URL MODEL FILE [--datums 4] [--tokens 256] [--vocabulary 200]
    python -m bench.one_step compare FILE FILE ...

`run`: the log-probabilities of random sequences before and after one importance_sampling step with advantages of +1 and
-1, and tokens sampled greedily from the new weights. `compare`: each file against the first.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import tinker

from bench.report import markdown
from harbortrainer.backend.sessions import self_hosted_key

RANK, SEED, LOW_ID, ANSWER = 8, 1, 20, 32
ADAM = tinker.AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8)
HEADINGS = (
    "server",
    "before, mean (max) nats",
    "moved by the step, nats",
    "after, mean (max) nats",
    "same first tokens",
)


def sequences(datums: int, tokens: int, vocabulary: int) -> np.ndarray:
    """(datums, tokens + 1) random ids, the same on every machine."""
    return np.random.default_rng(0).integers(LOW_ID, vocabulary, (datums, tokens + 1))


def batch(ids: np.ndarray, logprobs: np.ndarray | None = None) -> list[tinker.Datum]:
    """One datum a row of `ids`; `logprobs` (datums, tokens): of the weights that sampled. None = for cross_entropy."""

    def datum(row: int) -> tinker.Datum:
        inputs: dict[str, np.ndarray] = {"target_tokens": ids[row, 1:]}
        if logprobs is None:
            inputs["weights"] = np.ones(ids.shape[1] - 1, np.float32)
        else:
            inputs["logprobs"] = logprobs[row]
            inputs["advantages"] = np.full(ids.shape[1] - 1, 1.0 if row % 2 == 0 else -1.0, np.float32)
        return tinker.Datum(
            model_input=tinker.ModelInput.from_ints(ids[row, :-1].tolist()),
            loss_fn_inputs={name: tinker.TensorData.from_numpy(value) for name, value in inputs.items()},
        )

    return [datum(row) for row in range(len(ids))]


def logprobs_of(output: tinker.ForwardBackwardOutput) -> np.ndarray:
    return np.array([one["logprobs"].data for one in output.loss_fn_outputs], np.float32)


async def run(url: str, model: str, ids: np.ndarray) -> dict[str, Any]:
    """What `compare` reads. The adapter is unloaded after."""
    service = tinker.ServiceClient(base_url=url, api_key=self_hosted_key())
    client = await service.create_lora_training_client(model, rank=RANK, seed=SEED)
    before = logprobs_of(await client.forward(batch(ids), "cross_entropy"))
    began = time.monotonic()
    passed = client.forward_backward(batch(ids, before), "importance_sampling")
    stepped = client.optim_step(ADAM)
    await passed
    await stepped
    seconds = time.monotonic() - began
    after = logprobs_of(await client.forward(batch(ids), "cross_entropy"))
    sampler = await client.save_weights_and_get_sampling_client()
    prompt = tinker.ModelInput.from_ints(ids[0, :-1].tolist())
    greedy = tinker.SamplingParams(max_tokens=ANSWER, temperature=0.0, stop=[])
    sampled = (await sampler.sample(prompt, 1, greedy)).sequences[0]
    async with httpx.AsyncClient(timeout=60) as http:
        await http.post(f"{url}/api/v1/unload_model", json={"model_id": client.model_id, "type": "unload_model"})
    return {
        "before": before.tolist(),
        "after": after.tolist(),
        "sampled": list(sampled.tokens),
        "step_sec": round(seconds, 2),
    }


def row(file: Path, first: dict[str, Any]) -> list[str]:
    one = json.loads(file.read_text())
    gaps = {name: np.abs(np.array(one[name]) - np.array(first[name])) for name in ("before", "after")}
    moved = float(np.abs(np.array(one["after"]) - np.array(one["before"])).mean())
    pairs = enumerate(zip(one["sampled"], first["sampled"], strict=False))
    same = next((n for n, (a, b) in pairs if a != b), ANSWER)
    shown = {name: f"{gap.mean():.2g} ({gap.max():.2g})" for name, gap in gaps.items()}
    return [file.stem, shown["before"], f"{moved:.3g}", shown["after"], f"{same} of {ANSWER}"]


def compare(files: Sequence[Path]) -> str:
    """Markdown: differences of log-probabilities a token, each file against the first."""
    first = json.loads(files[0].read_text())
    return markdown(HEADINGS, [row(file, first) for file in files])


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.one_step")
    commands = parser.add_subparsers(dest="command", required=True)
    step = commands.add_parser("run")
    step.add_argument("url")
    step.add_argument("model")
    step.add_argument("file", type=Path)
    step.add_argument("--datums", type=int, default=4)
    step.add_argument("--tokens", type=int, default=256)
    step.add_argument("--vocabulary", type=int, default=200, help="ids of the sequences are below it")
    commands.add_parser("compare").add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    if args.command == "compare":
        print(compare(args.files))
        return
    found = await run(args.url.rstrip("/"), args.model, sequences(args.datums, args.tokens, args.vocabulary))
    args.file.write_text(json.dumps(found))
    print(f"{args.file}: one step in {found['step_sec']} s")


if __name__ == "__main__":
    asyncio.run(main())
