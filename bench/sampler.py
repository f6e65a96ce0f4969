"""The sampler of a running server, whichever it has: speed, prefix cache, numbers of trust, training beside it, kills.

    python -m bench.sampler URL --model NAME [--out FILE] [--only cold,trials] [--size small] [--state DIRECTORY]

    cold     prompts x (tokens + answer), then turn 2: the same with `added` tokens more; --warm rounds come before
    wide     twice as many prompts of a quarter of the tokens
    trials   `trials` x `turns`, each trial on its own, from `first` tokens on, `grow` more each turn (answer included)
    trust    the sampler's log-probabilities of what it sampled against the trainer's
    publish  save of new weights to their first token, and its parts: of the client, the engine, and vLLM's load
    idle     `steps` of forward_backward of `datums` + optim_step while nothing samples
    steps    forward_backward of `datums` + optim_step, while nothing samples and while `prompts` are sampled
    kill     vLLM killed with `prompts` in flight until all are answered; --state is the server's SKYRL_TX_STATE

The weights are an adapter after one training step. Each measure is a JSON line on the screen and in --out, also one
that fails, with what it has reached; the others still run.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import tinker

from bench import report
from bench.sampler_measures import Bench, Sizes
from harbortrainer.backend.load import look
from harbortrainer.run.metrics import compile_metrics, load_metrics

FAILURES = (tinker.TinkerError, httpx.HTTPError, OSError, ValueError, LookupError, RuntimeError)
SMALL = Sizes(
    prompts=4, tokens=200, answer=8, added=32, trials=4, turns=3, first=100, grow=40, datums=4, datum_tokens=200,
    trusted=4, rounds=2, steps=3, publishes=2, rank=8,
)  # fmt: skip
HEADINGS = ("measure", "result")
NAMES = ("cold", "wide", "trials", "trust", "publish", "idle", "steps", "kill")
Measure = Callable[[], Awaitable[dict[str, Any]]]


def measures(bench: Bench, state: Path | None) -> dict[str, Measure]:
    """By name, in the order in which they run."""
    found: dict[str, Measure] = {
        "cold": bench.two_turns,
        "wide": bench.wide,
        "trials": bench.trials,
        "trust": bench.trust,
        "publish": bench.publish,
        "idle": bench.idle,
        "steps": bench.steps,
    }
    if state is not None:
        found["kill"] = lambda: bench.kill(state)
    return found


async def measured(name: str, bench: Bench, measure: Measure, limit_sec: float) -> dict[str, Any]:
    began, bench.reached = time.monotonic(), {}
    try:
        async with asyncio.timeout(limit_sec):
            before = await look(bench.url) or {}
            found = await measure()
            found["compile_sec"] = round(await bench.compile_sec() - float(before.get("compile_seconds", 0.0)), 2)
            after = await look(bench.url) or {}
            found |= {"waves": after.get("waves", 0) - before.get("waves", 0)}
            found |= load_metrics(before, after) | compile_metrics(before, after)
    except FAILURES as error:
        found = {"failed": f"{type(error).__name__}: {error}"[:300] or "no answer", **bench.reached}
    return {"measure": name, **found, "took_sec": round(time.monotonic() - began, 2)}


async def run(given: argparse.Namespace, sizes: Sizes) -> list[dict[str, Any]]:
    """One line each; the first says what was measured."""
    lines: list[dict[str, Any]] = []

    def note(line: dict[str, Any]) -> None:
        lines.append(line)
        text = json.dumps(line)
        print(text, flush=True)
        if given.out is not None:
            with given.out.open("a") as out:
                out.write(text + "\n")

    bench = Bench(given.url, given.model, sizes, given.warm)
    note({"measure": "setup", "label": given.label, **dataclasses.asdict(sizes)} | await bench.setup())
    known = measures(bench, given.state)
    for name in given.only or known:
        note(await measured(name, bench, known[name], given.limit_sec))
    await bench.close()
    return lines


def rows(lines: list[dict[str, Any]]) -> list[list[str]]:
    """For people: all but long lists."""

    def text(value: object) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    left_out = {"measure", "took_sec"}
    return [
        [
            line["measure"],
            ", ".join(f"{k} {text(v)}" for k, v in line.items() if k not in left_out and len(text(v)) < 80),
        ]
        for line in lines
    ]


def sizes_of(given: argparse.Namespace) -> Sizes:
    chosen = {field.name: getattr(given, field.name) for field in dataclasses.fields(Sizes)}
    base = SMALL if given.size == "small" else Sizes()
    return dataclasses.replace(base, **{name: value for name, value in chosen.items() if value is not None})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--model", required=True, help="as the server was started with")
    parser.add_argument("--size", choices=("full", "small"), default="full", help="small: for a tiny model on a CPU")
    parser.add_argument("--warm", type=int, default=1, help="rounds of cold, wide and trials that are not counted")
    parser.add_argument("--only", type=lambda text: text.split(","), help="measures in this order, with commas between")
    parser.add_argument("--out", type=Path, help="JSON lines are added to this file")
    parser.add_argument("--label", default="", help="goes into the first line")
    parser.add_argument("--state", type=Path, help="the server's SKYRL_TX_STATE: kill vLLM as well")
    parser.add_argument("--limit-sec", type=float, default=300.0, help="of each measure")
    for field in dataclasses.fields(Sizes):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, help=f"default {field.default}")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if unknown := set(given.only or ()) - set(NAMES):
        sys.exit(f"--only {','.join(sorted(unknown))}: there is no such measure, only {','.join(NAMES)}")
    if "kill" in (given.only or ()) and given.state is None:
        sys.exit("--only kill: needs --state, the server's SKYRL_TX_STATE")
    lines = asyncio.run(run(given, sizes_of(given)))
    report.publish("bench.sampler", f"sampler of {given.url}", HEADINGS, rows(lines), None)
    if failed := [line["measure"] for line in lines if "failed" in line]:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
