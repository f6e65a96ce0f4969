"""How long a token of full seats takes in the server's engine, and which kernels of the GPU take that time.

    server/.venv/bin/python -m scripts.gpu.decode MODEL [--filled 700,3000,6000] [--seats 16] [--answer 2048]

For each of --filled: that many tokens in each seat, then chunks of answers (repairs engine_seats). A line has
milliseconds of a token of all seats and tokens a second, the best of --rounds chunks; then come the kernels of one
more chunk, as JAX's profiler saw them: milliseconds of a token, calls of a token, name. A CPU has no kernels.
"""

# pyright: reportMissingImports=false
import argparse
import gzip
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from scripts.gpu.passes import Meter, numbers


def filled(meter: Meter, given: argparse.Namespace, tokens: int) -> Any:
    """Seats, each with a prompt of so many tokens, after a first chunk."""
    from repairs.engine_seats import Row, Seats

    seats, rng = Seats(meter.engine), np.random.default_rng(tokens)
    one = meter.types.SamplingParams(temperature=1.0, max_tokens=given.answer, seed=3, top_k=0, top_p=1.0)
    seats.queue.extend(Row("r", rng.integers(5, meter.words, tokens).tolist(), one, "") for _ in range(given.seats))
    failed = [row.error for row in seats.step() if row.error]
    if failed:
        raise failed[0]
    return seats


def chunk(seats: Any) -> tuple[float, int]:
    """Seconds and steps of a chunk."""
    had, began = max(row.left for row in seats.taken), time.monotonic()
    seats._chunk()
    return time.monotonic() - began, had - max(row.left for row in seats.taken)


def kernels(folder: Path, steps: int, most: int = 24) -> list[dict[str, Any]]:
    """What ran on the GPU in a trace of `steps` tokens, what took longest first."""
    file = next(folder.rglob("*.trace.json.gz"))
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    devices = {one["pid"] for one in events if one.get("name") == "process_name" and "/device:" in one["args"]["name"]}
    lines = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one.get("name") == "thread_name"}
    spent, calls = Counter[str](), Counter[str]()
    for one in events:
        place = one.get("pid"), one.get("tid")
        if one.get("ph") == "X" and place[0] in devices and "Stream" in lines.get(place, ""):
            spent[one["name"]] += one["dur"]
            calls[one["name"]] += 1
    return [
        {"ms": round(micros / 1000 / steps, 4), "calls": round(calls[name] / steps, 1), "kernel": name[:120]}
        for name, micros in spent.most_common(most)
    ]


def measured(meter: Meter, given: argparse.Namespace, tokens: int) -> dict[str, Any]:
    seats = filled(meter, given, tokens)
    seats.steps = given.steps
    rounds = [chunk(seats) for _ in range(given.rounds)]
    with tempfile.TemporaryDirectory() as folder:
        with meter.jax.profiler.trace(folder):
            _, steps = chunk(seats)
        table = kernels(Path(folder), steps)
    best, room = min(seconds / steps for seconds, steps in rounds), seats.room
    seats.reset()
    return {"room": room, "ms": round(1000 * best, 3), "tokens_per_sec": given.seats / best, "kernels": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--filled", type=numbers, default=[700, 3000, 6000])
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--answer", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=128, help="of a chunk")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--out", default="")
    given = parser.parse_args()
    meter = Meter(given, given.seats)
    for tokens in given.filled:
        meter.attempt({"measure": "decode", "filled": tokens}, lambda tokens=tokens: measured(meter, given, tokens))


if __name__ == "__main__":
    sys.exit(main())
