"""Whether a sampling client is a frozen snapshot, and whether sampling leaves the weights in training alone."""

import math

import tinker

from src.probe.bench import Bench
from src.probe.climb import Step, climb, sgd, total
from src.probe.data import SEQUENCE
from src.probe.findings import Findings
from src.probe.optimizer import share

GROUP = "snapshots"
STEPS = 4  # of one nat each


async def scored(bench: Bench, sampler: tinker.SamplingClient) -> float:
    """Summed logprob of data.TOKENS but the first."""
    values = await bench.wait("prompt logprobs", sampler.compute_logprobs(SEQUENCE))
    return math.fsum(value for value in values if value is not None)


async def measure(bench: Bench, client: tinker.TrainingClient, findings: Findings) -> None:
    """Sets facts frozen_samplers, sampling_keeps_training. Raises BackendError."""
    late = await bench.published(client, "late")
    steps = [Step(sgd(bench.rate)) for _ in range(STEPS)]
    before = await climb(client, steps)
    saved, trained = before.totals[0], before.totals[-1]
    moved = trained - saved
    if moved < 0.5:
        findings.row(GROUP, "snapshots", "unclear: the steps did not move the weights", "unclear")
        return
    sampler = await bench.sampler(late)
    first = await scored(bench, sampler)
    after = await total(client)
    keeps = share(after - trained, moved, 0.05, 0.3)
    lost = f"no: {trained - after:.2f} of {moved:.2f} nats of training were lost"
    findings.judge(GROUP, "a late first sample leaves training alone (defect 1)", keeps, ("yes", lost), _LOSES)
    _snapshot_row(findings, "a late first sample is of the saved weights", share(first - saved, moved, 0.05, 0.3))
    await climb(client, steps)
    drift = await scored(bench, sampler) - first
    frozen = share(drift, moved, 0.05, 0.3)
    what = "a used sampler stays as it is while training goes on (defect 2)"
    findings.judge(GROUP, what, frozen, ("yes", f"no: it moved by {drift:.2f} nats"), _DRIFTS)
    older = await _older(bench, client, sampler, steps, findings)
    findings.facts["frozen_samplers"] = frozen
    findings.facts["sampling_keeps_training"] = False if False in (keeps, older) else keeps and older


_LOSES = "each sampler is used at once and only until the next step"
_DRIFTS = "no sampler is used after a training step"


async def _older(
    bench: Bench, client: tinker.TrainingClient, old: tinker.SamplingClient, steps: list[Step], findings: Findings
) -> bool | None:
    """Samples of newer weights, then of older ones."""
    new = await bench.sampler(await bench.published(client, "new"))
    await scored(bench, new)
    trained = (await climb(client, steps)).totals[-1]
    await scored(bench, old)
    after = await total(client)
    keeps = share(after - trained, STEPS * 1.0, 0.05, 0.2)
    lost = f"no: {trained - after:.2f} nats were lost"
    findings.judge(GROUP, "an older sampler leaves training alone (defect 1)", keeps, ("yes", lost), _LOSES)
    return keeps


def _snapshot_row(findings: Findings, what: str, found: bool | None) -> None:
    findings.judge(GROUP, what, found, ("yes", "no"), _DRIFTS)
