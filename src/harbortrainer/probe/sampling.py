"""Sampling from saved weights: whether its logprobs agree with the trainer's, and whether snapshots stay frozen."""

import math
from typing import Any

import numpy as np
import tinker

from harbortrainer.errors import BackendError
from harbortrainer.probe.optimizer import share
from harbortrainer.probe.report import ProbeFindings
from harbortrainer.probe.session import (
    N_TOKENS,
    NEW_TOKENS,
    PROMPT,
    PROMPT_TOKENS,
    SEQUENCE,
    TOKENS,
    ProbeSession,
    TrainStep,
    run_chain,
    sgd,
    total,
    weighted,
)

GROUP, SNAPSHOTS = "sampling", "snapshots"
CLOSE = 0.05  # nats a token, mean: of one bf16 model computed in two ways; two temperatures differ by far more
COLD = 0.5
N_STEPS = 4  # of one nat each


def settings(seed: int = 0, temperature: float = 1.0) -> tinker.SamplingParams:
    return tinker.SamplingParams(max_tokens=NEW_TOKENS, temperature=temperature, seed=seed)


async def draw(session: ProbeSession, client: tinker.SamplingClient, **more: Any) -> tinker.SampledSequence:
    """One sample after PROMPT. Raises BackendError."""
    answer = await session.wait("sampling", client.sample(PROMPT, 1, settings(**more)))
    return answer.sequences[0]


async def measure(session: ProbeSession, client: tinker.TrainingClient, findings: ProbeFindings) -> None:
    """Sample the trainer's weights. Sets facts can_sample, prompt_logprobs. Raises BackendError."""
    try:
        sampler = await session.sampler(await session.published(client, "first"))
        first = await draw(session, sampler)
    except (BackendError, AssertionError) as error:  # AssertionError: SDK 0.38 and a server that is too old for it
        findings.row(GROUP, "samples with this SDK", f"no: {error}"[:120], "unusable", "no run is possible")
        return
    findings.facts["can_sample"] = True
    findings.row(GROUP, "samples with this SDK", "yes", "same")
    await _agreement(session, client, first, await draw(session, sampler, temperature=COLD), findings)
    await _prompt_logprobs(session, client, sampler, findings)


async def _agreement(
    session: ProbeSession,
    client: tinker.TrainingClient,
    warm: tinker.SampledSequence,
    cold: tinker.SampledSequence,
    findings: ProbeFindings,
) -> None:
    """Compare the sampler's logprobs with the trainer's, which are of temperature 1."""
    texts = ((1.0, warm), (COLD, cold))
    if any(len(one.tokens) != NEW_TOKENS for _, one in texts):
        findings.row(GROUP, "sampler against trainer", "not measured: an answer ended early", "not measured")
        return
    data = [weighted(1.0, [*TOKENS[:PROMPT_TOKENS], *one.tokens]) for _, one in texts]
    output = await session.wait("forward", client.forward(data, "cross_entropy"))
    for (temperature, one), result in zip(texts, output.loss_fn_outputs, strict=True):
        trained = np.array(result["logprobs"].data, float)[-NEW_TOKENS:]
        apart = np.abs(trained - np.array(one.logprobs, float))
        what = f"sampler against trainer, temperature {temperature:g}"
        value = f"logprobs differ by {apart.mean():.2g} (mean), {apart.max():.2g} (largest)"
        note = "" if apart.mean() < CLOSE else "importance ratios are off by as much; metric sampling/…_diff shows it"
        findings.row(GROUP, what, value, "same" if apart.mean() < CLOSE else "differs", note)


async def _prompt_logprobs(
    session: ProbeSession, client: tinker.TrainingClient, sampler: tinker.SamplingClient, findings: ProbeFindings
) -> None:
    findings.facts["prompt_logprobs"] = "refused"
    try:
        values = await session.wait("prompt logprobs", sampler.compute_logprobs(SEQUENCE))
    except (BackendError, AssertionError) as error:
        findings.row(GROUP, "prompt logprobs", "refused", "unusable", f"no kl_penalty_coef: {error}"[:120])
        return
    whole = len(values) == N_TOKENS and values[0] is None
    if whole or len(values) == N_TOKENS - 1:
        findings.facts["prompt_logprobs"] = "leading_none" if whole else "short"
    text = (f"{N_TOKENS} for {N_TOKENS} tokens, the first None", f"{len(values)} for {N_TOKENS} tokens")
    findings.judge(GROUP, "prompt logprobs", whole, text, "aligned from the end here")
    now = (await run_chain(client)).logprobs
    apart = max(abs(a - b) for a, b in zip(now, [v for v in values if v is not None][-len(now) :], strict=True))
    findings.row(GROUP, "prompt logprobs against trainer", f"largest difference {apart:.2g}", "info")


async def scored(session: ProbeSession, sampler: tinker.SamplingClient) -> float:
    """The summed logprob of TOKENS without the first."""
    values = await session.wait("prompt logprobs", sampler.compute_logprobs(SEQUENCE))
    return math.fsum(value for value in values if value is not None)


async def snapshots(session: ProbeSession, client: tinker.TrainingClient, findings: ProbeFindings) -> None:
    """Sets facts frozen_samplers, sampling_keeps_training. Raises BackendError."""
    late = await session.published(client, "late")
    steps = [TrainStep(sgd(session.rate)) for _ in range(N_STEPS)]
    before = await run_chain(client, steps)
    saved, trained = before.totals[0], before.totals[-1]
    moved = trained - saved
    if moved < 0.5:
        findings.row(SNAPSHOTS, "snapshots", "unclear: the steps did not move the weights", "unclear")
        return
    sampler = await session.sampler(late)
    first = await scored(session, sampler)
    after = await total(client)
    keeps = share(after - trained, moved, 0.05, 0.3)
    lost = f"no: {trained - after:.2f} of {moved:.2f} nats of training were lost"
    findings.judge(SNAPSHOTS, "a late first sample leaves training alone (defect 1)", keeps, ("yes", lost), _LOSES)
    same = share(first - saved, moved, 0.05, 0.3)
    findings.judge(SNAPSHOTS, "a late first sample is of the saved weights", same, ("yes", "no"), _DRIFTS)
    await run_chain(client, steps)
    drift = await scored(session, sampler) - first
    frozen = share(drift, moved, 0.05, 0.3)
    what = "a used sampler stays frozen while training continues (defect 2)"
    findings.judge(SNAPSHOTS, what, frozen, ("yes", f"no: it moved by {drift:.2f} nats"), _DRIFTS)
    older = await _older(session, client, sampler, steps, findings)
    findings.facts["frozen_samplers"] = frozen
    findings.facts["sampling_keeps_training"] = False if False in (keeps, older) else keeps and older


_LOSES = "each sampler is used at once and only until the next step"
_DRIFTS = "no sampler is used after a training step"


async def _older(
    session: ProbeSession,
    client: tinker.TrainingClient,
    old: tinker.SamplingClient,
    steps: list[TrainStep],
    findings: ProbeFindings,
) -> bool | None:
    """Whether sampling newer weights, then older ones, leaves the weights in training alone."""
    new = await session.sampler(await session.published(client, "new"))
    await scored(session, new)
    trained = (await run_chain(client, steps)).totals[-1]
    await scored(session, old)
    after = await total(client)
    keeps = share(after - trained, N_STEPS * 1.0, 0.05, 0.2)
    lost = f"no: {trained - after:.2f} nats were lost"
    findings.judge(SNAPSHOTS, "an older sampler leaves training alone (defect 1)", keeps, ("yes", lost), _LOSES)
    return keeps
