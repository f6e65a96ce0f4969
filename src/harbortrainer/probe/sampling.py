"""Sampling from saved weights: whether its logprobs agree with the trainer's, and whether snapshots stay frozen."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tinker

from harbortrainer.errors import BackendError
from harbortrainer.probe.noise import ENOUGH, nearer
from harbortrainer.probe.optimizer import sign_step, warmed
from harbortrainer.probe.report import ProbeFindings
from harbortrainer.probe.session import (
    N_TOKENS,
    NEW_TOKENS,
    PROMPT,
    PROMPT_TOKENS,
    SEQUENCE,
    TOKENS,
    ProbeSession,
    drop_gradient,
    run_chain,
    tokens_of,
    total,
    weighted,
)

GROUP, SNAPSHOTS = "sampling", "snapshots"
PADDED = "the same tokens with other padding"
# Nats a token, mean: always close enough; never. In bfloat16 a token at the border of two experts moves by 0.06; two
# temperatures differ by more than FAR
CLOSE, FAR = 0.1, 0.25
TIMES_NOISE = 4.0  # a token's noise: close enough, for the sampler computes in another order
COLD = 0.5
N_STEPS = 4  # steps of signs, at least
MOST_CHAINS = 4  # until the steps' gain shows
LOST = 0.5  # of the gain of the steps: above, it counts as lost


def settings(seed: int = 0, temperature: float = 1.0) -> tinker.SamplingParams:
    return tinker.SamplingParams(max_tokens=NEW_TOKENS, temperature=temperature, seed=seed, stop=[])


async def asked(
    session: ProbeSession,
    client: tinker.SamplingClient,
    prompt: tinker.ModelInput,
    scored: bool = True,
    **more: Any,
) -> tinker.SampleResponse:
    """Return one sample and, if `scored`, the prompt's logprobs. Raises BackendError.

    Samples and scores are the same request, which a server compiles once; compute_logprobs would be another.
    """
    return await session.wait("sampling", client.sample(prompt, 1, settings(**more), include_prompt_logprobs=scored))


async def measure(session: ProbeSession, findings: ProbeFindings, alone: Sequence[float] = ()) -> None:
    """Sample the trainer's weights. Sets facts can_sample, prompt_logprobs. Raises BackendError.

    `alone`: the trainer's logprobs of TOKENS. With them no prompt is scored, which takes a program of its own, and the
    samples are asked for at once.
    """
    client = session.client
    findings.facts["prompt_logprobs"] = "refused"
    try:
        sampler = await session.sampler(await session.published(client, "first"))
        scored = not alone and await _scores(session, sampler, findings)
        asking = [asked(session, sampler, PROMPT, scored, temperature=value) for value in (1.0, COLD)]
        answers = await asyncio.gather(*asking) if alone else [await one for one in asking]
        warm, cold = (answer.sequences[0] for answer in answers)
    except (BackendError, AssertionError) as error:  # AssertionError: SDK 0.38 and a server that is too old for it
        findings.row(GROUP, "samples with this SDK", f"no: {error}"[:120], "unusable", "no run is possible")
        return
    findings.facts["can_sample"] = True
    findings.row(GROUP, "samples with this SDK", "yes", "same")
    prompts = await _agreement(session, client, warm, cold, findings)
    if alone:
        _compare(session, PADDED, np.abs(prompts - np.array(alone)[: PROMPT_TOKENS - 1]), findings)
    elif scored:
        await _padding(session, sampler, findings)


async def _agreement(
    session: ProbeSession,
    client: tinker.TrainingClient,
    warm: tinker.SampledSequence,
    cold: tinker.SampledSequence,
    findings: ProbeFindings,
) -> np.ndarray:
    """Compare the sampler's logprobs with the trainer's, which are of temperature 1.

    Returns the trainer's of the prompt before either answer, shape (2, PROMPT_TOKENS - 1).
    """
    texts = ((1.0, warm, NEW_TOKENS), (COLD, cold, NEW_TOKENS // 2))  # of two lengths, so that one may be padded
    data = [weighted(1.0, [*TOKENS[:PROMPT_TOKENS], *one.tokens[:count]]) for _, one, count in texts]
    output = await session.wait("forward_backward", client.forward_backward(data, "cross_entropy"))
    await drop_gradient(session, client)
    trained = [np.array(result["logprobs"].data, float) for result in output.loss_fn_outputs]
    for (temperature, one, count), values in zip(texts, trained, strict=True):
        apart = np.abs(values[PROMPT_TOKENS - 1 :] - np.array(one.logprobs, float)[:count])
        _compare(session, f"sampler against trainer, temperature {temperature:g}", apart, findings)
    return np.array([values[: PROMPT_TOKENS - 1] for values in trained])


async def _padding(session: ProbeSession, sampler: tinker.SamplingClient, findings: ProbeFindings) -> None:
    """Train TOKENS alone, and score a longer prompt that begins with them: a server pads the two differently."""
    alone = (await run_chain(session.client)).logprobs
    longer = tinker.ModelInput.from_ints([*TOKENS, *tokens_of(1), *tokens_of(2)])
    within = np.array(known(await asked(session, sampler, longer)), float)[: len(alone)]
    _compare(session, PADDED, np.abs(within - np.array(alone)), findings)


def _compare(session: ProbeSession, what: str, apart: np.ndarray, findings: ProbeFindings) -> None:
    """A row for two measurements of the same logprobs; added to fact wrong where they differ."""
    value = f"logprobs differ by {apart.mean():.2g} (mean), {apart.max():.2g} (largest)"
    if apart.mean() < min(FAR, max(CLOSE, TIMES_NOISE * session.token_noise)):  # not so: NaN
        findings.row(GROUP, what, value, "same")
        return
    findings.row(GROUP, what, value, "differs", "no run is possible: it would train another policy than it samples")
    findings.facts["wrong"] = "; ".join(filter(None, (findings.facts.get("wrong"), f"{what}: {value}")))


async def _scores(session: ProbeSession, sampler: tinker.SamplingClient, findings: ProbeFindings) -> bool:
    """Whether the server scores a prompt. Sets fact prompt_logprobs."""
    try:
        values = (await asked(session, sampler, SEQUENCE)).prompt_logprobs or []
    except (BackendError, AssertionError) as error:
        findings.row(GROUP, "prompt logprobs", "refused", "unusable", f"no kl_penalty_coef: {error}"[:120])
        return False
    whole = len(values) == N_TOKENS and values[0] is None
    if whole or len(values) == N_TOKENS - 1:
        findings.facts["prompt_logprobs"] = "leading_none" if whole else "short"
    text = (f"{N_TOKENS} for {N_TOKENS} tokens, the first None", f"{len(values)} for {N_TOKENS} tokens")
    findings.judge(GROUP, "prompt logprobs", whole, text, "aligned from the end here")
    return True


async def scored(session: ProbeSession, sampler: tinker.SamplingClient) -> float:
    """Return the summed logprob of TOKENS without the first."""
    return math.fsum(known(await asked(session, sampler, SEQUENCE)))


def known(answer: tinker.SampleResponse) -> Sequence[float]:
    """Return the prompt's logprobs without None."""
    return [value for value in answer.prompt_logprobs or () if value is not None]


async def snapshots(session: ProbeSession, findings: ProbeFindings) -> None:
    """Set facts frozen_samplers, sampling_keeps_training. Raises BackendError."""
    await warmed(session)
    client = session.client
    late = await session.published(client, "late")
    saved, trained = await _trained(session)
    moved = trained - saved
    if moved < max(0.5, session.noise):
        findings.row(SNAPSHOTS, "snapshots", "unclear: the steps did not move the weights", "unclear")
        return
    sampler = await session.sampler(late)
    first = await scored(session, sampler)
    after = await total(client)
    keeps = _kept(session, after - trained, moved)
    lost = f"no: {trained - after:.2f} of {moved:.2f} nats of training were lost"
    findings.judge(SNAPSHOTS, "a late first sample leaves training alone (defect 1)", keeps, ("yes", lost), _LOSES)
    same = _kept(session, first - saved, moved)
    findings.judge(SNAPSHOTS, "a late first sample is of the saved weights", same, ("yes", "no"), _DRIFTS)
    before, trained = await _trained(session)
    drift = await scored(session, sampler) - first
    frozen = _kept(session, drift, trained - before)
    what = "a used sampler stays frozen while training continues (defect 2)"
    findings.judge(SNAPSHOTS, what, frozen, ("yes", f"no: it moved by {drift:.2f} nats"), _DRIFTS)
    findings.facts["frozen_samplers"], findings.facts["sampling_keeps_training"] = frozen, keeps


async def _trained(session: ProbeSession) -> tuple[float, float]:
    """The summed logprob before and after steps whose gain noise cannot hide, or after MOST_CHAINS of them."""
    steps = [sign_step(session)] * max(N_STEPS, session.repeats)
    chain = await session.run(steps)
    before = chain.totals[0]
    for _ in range(MOST_CHAINS):
        if chain.totals[-1] - before > ENOUGH * session.noise:
            break
        chain = await session.run(steps)
    return before, chain.totals[-1]


_LOSES = "each sampler is used at once and only until the next step"
_DRIFTS = "no sampler is used after a training step"


def _kept(session: ProbeSession, change: float, moved: float) -> bool | None:
    """Whether a logprob stayed where it was; `moved`: what the steps gained that could be lost or show through."""
    return nearer(abs(change), 0.0, abs(moved), session.noise, middle=LOST)
