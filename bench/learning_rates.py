"""Small learning rates in float32 and bfloat16: Adam steps on one batch, from fresh adapters, on running servers.

    python -m bench.learning_rates URL MODEL [URL MODEL ...] [--rates 1e-4,1e-5,1e-6] [--steps 20] [--datums 8]

Prints one table: the change of the mean loss a token for each rate and server. Adapters are rank 8 and unloaded after.
"""

import argparse
import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import numpy as np
import tinker

from harbortrainer.backend.sessions import self_hosted_key
from harbortrainer.policy.chat_template import hub_options

N_TOKENS, LOW_ID, HIGH_ID = 25, 20, 220
RANK, SEED = 8, 1


@dataclass(frozen=True, slots=True)
class Change:
    """Mean loss a token, nats, before the first step and after the last."""

    rate: float
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


def batch(datums: int) -> list[tinker.Datum]:
    """Random sequences, the same on every machine."""
    rng = np.random.default_rng(0)

    def datum() -> tinker.Datum:
        tokens = rng.integers(LOW_ID, HIGH_ID, N_TOKENS).tolist()
        inputs = {"target_tokens": np.array(tokens[1:]), "weights": np.ones(N_TOKENS - 1, np.float32)}
        return tinker.Datum(
            model_input=tinker.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={name: tinker.TensorData.from_numpy(value) for name, value in inputs.items()},
        )

    return [datum() for _ in range(datums)]


def loss(output: tinker.ForwardBackwardOutput) -> float:
    logprobs = [float(value) for one in output.loss_fn_outputs for value in one["logprobs"].data]
    return -math.fsum(logprobs) / len(logprobs)


async def changes(url: str, model: str, rates: Sequence[float], steps: int, datums: int) -> list[Change]:
    """`steps` Adam steps on one batch at each rate, each from a fresh adapter of the same seed."""
    service = tinker.ServiceClient(base_url=url, api_key=self_hosted_key())
    data, found = batch(datums), []
    for rate in rates:
        client = await service.create_lora_training_client(model, rank=RANK, seed=SEED)
        adam = tinker.AdamParams(learning_rate=rate, beta1=0.9, beta2=0.95, eps=1e-12)
        still = tinker.AdamParams(learning_rate=0.0)
        passes, taken = [], []
        for optimizer in [adam] * steps + [still]:
            passes.append(client.forward_backward(data, "cross_entropy"))
            taken.append(client.optim_step(optimizer))
        losses = [loss(await one) for one in passes]
        for one in taken:
            await one
        found.append(Change(rate, losses[0], losses[-1]))
        async with httpx.AsyncClient(timeout=60) as http:
            await http.post(f"{url}/api/v1/unload_model", json={"model_id": client.model_id, "type": "unload_model"})
    return found


def dtype_of(model: str) -> str:
    """Of the base model's weights, by its config.json."""
    from transformers import AutoConfig  # takes a second: not at import

    return str(getattr(AutoConfig.from_pretrained(model, **hub_options(model)), "dtype", "")).removeprefix("torch.")


def table(results: dict[str, list[Change]]) -> str:
    """Markdown: a row for each rate, a column for each server, and the last one's share of the first one's change."""
    names = list(results)
    lines = [f"| rate | {' | '.join(names)} | last / first |", "| --- |" + " --- |" * (len(names) + 1)]
    for row in zip(*results.values(), strict=True):
        share = row[-1].change / row[0].change if row[0].change else math.nan
        lines.append(f"| {row[0].rate:g} | {' | '.join(f'{one.change:+.6f}' for one in row)} | {share:.2f} |")
    return "\n".join(lines)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.learning_rates")
    parser.add_argument("servers", nargs="+", metavar="URL MODEL", help="URL and model of each server")
    parser.add_argument("--rates", default="1e-4,1e-5,1e-6")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--datums", type=int, default=8)
    args = parser.parse_args()
    if len(args.servers) % 2:
        parser.error("give a URL and a model for each server")
    rates = [float(rate) for rate in args.rates.split(",")]
    results = {}
    for url, model in zip(args.servers[::2], args.servers[1::2], strict=True):
        found = await changes(url, model, rates, args.steps, args.datums)
        results[f"{dtype_of(model)} ({url})"] = found
    print(
        f"change of the loss a token, nats, after {args.steps} Adam steps on {args.datums} sequences of {N_TOKENS} ids"
    )
    print(table(results))


if __name__ == "__main__":
    asyncio.run(main())
