"""Many of our trials at once, and many one after the other: what fails, what is left, what grows."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench import report
from scripts.bench.meters import holdings, metered
from scripts.bench.policy import Script
from scripts.bench.variants import RUN_ID, Ours
from src.rollout.docker import owner
from src.rollout.docker.engine import call, engine

SHORT = Script(n_commands=1, turns=3)
SAMPLE_EVERY = 50  # trials
HELD = ("trials", "trials/s", "RSS MiB", "descriptors", "threads", "containers", "images", "networks", "faults")


async def at_once(task: Path, n: int, write: bool) -> None:
    """`n` trials whose policy answers none before all of them have asked."""
    ours = Ours(task, n, SHORT, together=n)
    before = await call(_count)
    async with _peak() as peak:
        with metered() as cost:
            runs = await ours.run(n)
    after = await call(_count)
    faults = Counter(run.fault for run in runs if run.fault)
    rows = [
        ["trials, all alive at once", str(n)],
        ["infrastructure and verifier failures", str(faults.total())],
        ["seconds, with removal", f"{cost.wall:.1f}"],
        *([f"{what}: before, peak, after", f"{before[what]}, {peak[what]}, {after[what]}"] for what in before),
    ]
    _publish("at once", ("", ""), rows, write)
    for fault, count in faults.most_common():
        print(count, fault)


async def in_a_row(task: Path, n: int, parallel: int, write: bool) -> None:
    """`n` trials, `parallel` at a time, with a sample of what is held after every 50."""
    ours = Ours(task, parallel, SHORT)
    await ours.run(parallel)  # imports, caches, threads
    samples = [_sample(await call(_count), 0, 0.0, 0)]
    for done in range(SAMPLE_EVERY, n + 1, SAMPLE_EVERY):
        with metered() as cost:
            runs = await ours.run(SAMPLE_EVERY)
        faults = sum(bool(run.fault) for run in runs)
        samples.append(_sample(await call(_count), done, SAMPLE_EVERY / cost.wall, faults))
        print(dict(zip(HELD, samples[-1], strict=True)), flush=True)
    rows = [[f"{value:.4g}" for value in sample] for sample in samples]
    rows.append(["slope a 100 trials", "", *_slopes(samples), ""])
    _publish("in a row", HELD, rows, write)


def _publish(name: str, headings: Sequence[str], rows: report.Rows, write: bool) -> None:
    report.show(name, headings, rows)
    if write:
        head = report.circumstances("scripts.bench.environments")
        report.replace_part(report.BENCHMARKS, name, f"{head}\n\n{report.markdown(headings, rows)}")


def _sample(counts: dict[str, int], trials: int, rate: float, faults: int) -> list[float]:
    held = holdings()
    own = [held.rss_mb, held.descriptors, held.threads]
    return [trials, rate, *own, *(counts[name] for name in ("containers", "images", "networks")), faults]


def _slopes(samples: list[list[float]]) -> Iterator[str]:
    """Of RSS to networks, by least squares over the second half: the first fills caches."""
    late = np.array(samples[len(samples) // 2 :])
    for column in range(2, 8):
        slope = np.polyfit(late[:, 0], late[:, column], 1)[0] if len(late) > 1 else float("nan")
        yield f"{100 * slope:+.2f}"


def _count() -> dict[str, int]:
    """Containers of the benchmark, all images, all networks. Blocks."""
    client = engine()
    mine: dict[str, Any] = {"label": f"{owner.RUN_ID}={RUN_ID}"}
    return {
        "containers": len(client.containers(all=True, filters=mine)),
        "images": len(client.images(quiet=True)),
        "networks": len(client.networks()),
    }


@asynccontextmanager
async def _peak() -> AsyncIterator[Counter[str]]:
    """The largest counts seen, once a second."""
    peak: Counter[str] = Counter()

    async def watch() -> None:
        while True:
            for what, count in (await call(_count)).items():
                peak[what] = max(peak[what], count)
            await asyncio.sleep(1.0)

    task = asyncio.create_task(watch())
    try:
        yield peak
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
