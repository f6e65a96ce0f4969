"""Samples: seeds, stops, temperatures, logprobs of prompts, and agreement with the trainer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tinker

from src.backend.faults import SDK_ERRORS
from src.errors import BackendError
from src.probe.bench import Bench
from src.probe.climb import climb
from src.probe.data import N_TOKENS, NEW_TOKENS, PROMPT, PROMPT_TOKENS, SEQUENCE, TOKENS, weighted
from src.probe.findings import Findings

GROUP = "sampling"
CLOSE = 0.05  # nats a token, mean: of one bf16 model computed in two ways; two temperatures differ by far more
COLD = 0.5


def settings(seed: int = 0, temperature: float = 1.0, stop: Any = None) -> tinker.SamplingParams:
    return tinker.SamplingParams(max_tokens=NEW_TOKENS, temperature=temperature, seed=seed, stop=stop)


async def draw(bench: Bench, client: tinker.SamplingClient, **more: Any) -> tinker.SampledSequence:
    """One sample after data.PROMPT. Raises BackendError."""
    answer = await bench.wait("sampling", client.sample(PROMPT, 1, settings(**more)))
    return answer.sequences[0]


async def measure(
    bench: Bench, client: tinker.TrainingClient, sampler: tinker.SamplingClient, findings: Findings
) -> None:
    """Of a sampler that has the trainer's weights. Sets facts can_sample, prompt_logprobs. Raises BackendError."""
    try:
        first = await draw(bench, sampler)
    except AssertionError as error:  # SDK 0.38 of a server that is too old for it
        raise BackendError(f"this SDK cannot sample here: {error}") from None
    findings.facts["can_sample"] = True
    findings.row(GROUP, "samples with this SDK", "yes", "same")
    again, other, cold = [await draw(bench, sampler, **more) for more in ({}, {"seed": 1}, {"temperature": COLD})]
    seeded = first.tokens == again.tokens
    text = ("same seed, same tokens", "another answer with the same seed")
    findings.judge(GROUP, "seeds", seeded, text, "evaluations are not reproducible")
    differ = "differ" if first.tokens != other.tokens else "are the same"
    findings.row(GROUP, "other seeds", differ, "same" if differ == "differ" else "unclear")
    await _agreement(bench, client, first, cold, findings)
    await _stops(bench, sampler, first, findings)
    await _prompt_logprobs(bench, client, sampler, findings)


async def _agreement(
    bench: Bench,
    client: tinker.TrainingClient,
    warm: tinker.SampledSequence,
    cold: tinker.SampledSequence,
    findings: Findings,
) -> None:
    """Sampler's logprobs against the trainer's, which are of temperature 1."""
    texts = ((1.0, warm), (COLD, cold))
    if any(len(one.tokens) != NEW_TOKENS for _, one in texts):
        findings.row(GROUP, "sampler against trainer", "not measured: an answer ended early", "not measured")
        return
    data = [weighted(1.0, [*TOKENS[:PROMPT_TOKENS], *one.tokens]) for _, one in texts]
    output = await bench.wait("forward", client.forward(data, "cross_entropy"))
    for (temperature, one), result in zip(texts, output.loss_fn_outputs, strict=True):
        trained = np.array(result["logprobs"].data, float)[-NEW_TOKENS:]
        apart = np.abs(trained - np.array(one.logprobs, float))
        what = f"sampler against trainer, temperature {temperature:g}"
        value = f"logprobs differ by {apart.mean():.2g} (mean), {apart.max():.2g} (largest)"
        note = "" if apart.mean() < CLOSE else "importance ratios are off by as much; metric sampling/…_diff shows it"
        findings.row(GROUP, what, value, "same" if apart.mean() < CLOSE else "differs", note)


async def _stops(
    bench: Bench, sampler: tinker.SamplingClient, first: tinker.SampledSequence, findings: Findings
) -> None:
    """Stops at the third token of an answer that is known by its seed."""
    stop = first.tokens[2]
    where = first.tokens.index(stop)
    found = await draw(bench, sampler, stop=[stop])
    _stop_row(findings, "stop token", found.tokens, first.tokens, where)
    try:
        text = str(sampler.get_tokenizer().decode([stop]))
    except SDK_ERRORS as error:
        findings.row(GROUP, "stop string", f"not measured: no tokenizer ({error})"[:90], "not measured")
        return
    if not text.strip() or "�" in text:
        findings.row(GROUP, "stop string", "not measured: the token has no text of its own", "not measured")
        return
    found = await draw(bench, sampler, stop=[text])
    _stop_row(findings, "stop string", found.tokens, first.tokens, None)


def _stop_row(findings: Findings, what: str, found: Sequence[int], whole: Sequence[int], where: int | None) -> None:
    if list(found) != list(whole[: len(found)]):
        findings.row(GROUP, what, "unclear: another answer with the same seed", "unclear")
    elif len(found) == len(whole):
        findings.row(GROUP, what, "without effect", "differs", "answers run to max_tokens")
    elif where is None:
        findings.row(GROUP, what, f"the answer ends after {len(found)} of {len(whole)} tokens", "same")
    else:
        kept = "kept" if len(found) == where + 1 else "left out" if len(found) == where else "elsewhere"
        verdict = "same" if kept == "kept" else "differs"
        findings.row(GROUP, what, f"the answer ends there, the stop token is {kept}", verdict)


async def _prompt_logprobs(
    bench: Bench, client: tinker.TrainingClient, sampler: tinker.SamplingClient, findings: Findings
) -> None:
    findings.facts["prompt_logprobs"] = "refused"
    try:
        values = await bench.wait("prompt logprobs", sampler.compute_logprobs(SEQUENCE))
    except (BackendError, AssertionError) as error:
        findings.row(GROUP, "prompt logprobs", "refused", "unusable", f"no kl_penalty_coef: {error}"[:120])
        return
    whole = len(values) == N_TOKENS and values[0] is None
    if whole or len(values) == N_TOKENS - 1:
        findings.facts["prompt_logprobs"] = "leading_none" if whole else "short"
    text = (f"{N_TOKENS} for {N_TOKENS} tokens, the first None", f"{len(values)} for {N_TOKENS} tokens")
    findings.judge(GROUP, "prompt logprobs", whole, text, "aligned from the end here")
    now = (await climb(client)).logprobs
    apart = max(abs(a - b) for a, b in zip(now, [v for v in values if v is not None][-len(now) :], strict=True))
    findings.row(GROUP, "prompt logprobs against trainer", f"largest difference {apart:.2g}", "info")
    refusal = await bench.refusal("topk", sampler.sample(PROMPT, 1, settings(), True, 2))
    text = "accepted" if refusal is None else "refused"
    findings.row(GROUP, "top-k prompt logprobs", text, "same" if refusal is None else "differs", "not used here")
