"""How long an answer takes, and whether training and sampling wait for each other. For people: nothing is judged."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import tinker

from src.probe.bench import Bench
from src.probe.climb import Step, adam, climb
from src.probe.data import PROMPT, weighted
from src.probe.findings import Findings
from src.probe.sampling import settings

GROUP = "times"
AT_ONCE = 4


async def measure(
    bench: Bench, client: tinker.TrainingClient, sampler: tinker.SamplingClient | None, findings: Findings
) -> None:
    """Warm requests of the shapes that the probe uses. Raises BackendError."""
    one, still = [weighted()], adam(0.0)
    calls: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
        ("healthz", lambda: bench.http.get("healthz")),
        ("capabilities", lambda: bench.rest.get_server_capabilities()),
        ("forward_backward", lambda: client.forward_backward(one, "cross_entropy")),
        ("optim_step", lambda: client.optim_step(still)),
    ]
    if sampler is not None:
        calls.append(("sample", lambda: sampler.sample(PROMPT, 1, settings())))
    for what, call in calls:
        findings.row(GROUP, what, f"{1000 * await _seconds(bench, what, call()):.0f} ms", "info")
    if sampler is not None:
        await _overlap(bench, client, sampler, findings)


async def _overlap(
    bench: Bench, client: tinker.TrainingClient, sampler: tinker.SamplingClient, findings: Findings
) -> None:
    steps = [Step(adam(0.0))] * AT_ONCE

    async def sampling() -> None:
        await asyncio.gather(*(_one(sampler.sample(PROMPT, 1, settings(seed))) for seed in range(AT_ONCE)))

    async def both() -> None:
        await asyncio.gather(climb(client, steps), sampling())

    train = await _seconds(bench, "training", climb(client, steps))
    sample = await _seconds(bench, "sampling", sampling())
    together = await _seconds(bench, "both", both())
    value = f"{AT_ONCE} steps {train:.2f} s, {AT_ONCE} samples {sample:.2f} s, both at once {together:.2f} s"
    findings.row(GROUP, "training and sampling", value, "info", "less than the sum: they overlap")


async def _one(future: Any) -> Any:
    return await future


async def _seconds(bench: Bench, what: str, work: Awaitable[Any]) -> float:
    began = time.monotonic()
    await bench.wait(what, work)
    return time.monotonic() - began
