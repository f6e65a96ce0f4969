"""What this project's own server promises by the repairs that it names, and three measurements that confirm it.

They take one adapter, five short passes and two samples, all of one shape each: a server compiles a program for each.
"""

from collections.abc import Callable, Mapping
from typing import Any

from harbortrainer.backend.contract import TINKER_DOCUMENTS
from harbortrainer.probe import sampling
from harbortrainer.probe.losses import DEFAULTS, GRADIENT, NORM_ERROR
from harbortrainer.probe.report import ProbeFindings
from harbortrainer.probe.session import ProbeSession, TrainStep, adam, pair, sgd, weighted

# Without one of them the server as published differs from Tinker in a fact of the contract
NEEDED = frozenset(
    [
        "sdk",
        "own_pass",
        "losses",
        "own_step",
        "loss_sum",
        "grad_clip",
        "samplers",
        "padding",
        "prompt_logprobs",
        "logprobs",
    ]
)
FACTS = {
    "losses": {
        name: tuple(one for one in DEFAULTS if one in having) for name, having in TINKER_DOCUMENTS.losses.items()
    },
    "adam": dict(TINKER_DOCUMENTS.adam),
    "reduction": "sum",
    "prompt_logprobs": "leading_none",
    "frozen_samplers": True,
    "sampling_keeps_training": True,
}
SUMS = "sums over tokens and datums"
# Calls whose gradients are 4 and 2 times that of a chain's last one where losses are summed
CALLS = ((4, (pair(4.0),)), (2, ((weighted(), weighted()),)))
LOW_GAIN, HIGH_GAIN = -0.5, 1.35  # nats of a plain step; a mean of two datums gains 2


def promised(server: Mapping[str, Any]) -> bool:
    """Return whether a server's healthz names all repairs that the facts need."""
    return set(server.get("repairs", ())) >= NEEDED


async def confirm(session: ProbeSession, findings: ProbeFindings, say: Callable[[str], None]) -> bool:
    """Confirm that gradients are sums, that samples are of the weights in training, and that padding does not show.

    Sets all facts of empty `findings`. False where a measurement does not confirm the promise, which `say` gets a line
    about. Raises BackendError.
    """
    await session.renew()
    alone: list[float] = []
    await findings.section(GRADIENT, lambda: _sums(session, findings, alone))
    if findings.facts.get("reduction") == "sum":
        await findings.section(sampling.GROUP, lambda: sampling.measure(session, findings, alone))
    await session.release(session.client)
    kept = findings.facts.get("can_sample", False) and not findings.facts.get("wrong")
    findings.facts.update(FACTS)
    for row in findings.rows:
        if row.verdict != "same":
            say(f"{row.what}: {row.value}; the server promises otherwise, so all is measured")
    return kept


async def _sums(session: ProbeSession, findings: ProbeFindings, alone: list[float]) -> None:
    """Sets fact reduction where the reported norms of CALLS, and the gain of a step, are those of sums.

    A plain step of rate 1 / norm² gains about one nat; more where datums are averaged, less where rounding to bfloat16
    is a part of the norm, and exactly 0 where it does not reach the weights. `alone` gets the logprobs of TOKENS after
    it. Raises BackendError.
    """
    *others, first = (await session.run([TrainStep(adam(0.0), calls) for _, calls in CALLS])).norms_at
    if not first:
        findings.row(GRADIENT, SUMS, "no norm is reported", "unclear")
        return
    ratios = [(norm or 0.0) / first for norm in others]
    chain = await session.run([TrainStep(sgd(1 / first**2))])
    alone += chain.logprobs
    gain = chain.gains[0]
    right = all(abs(ratio / factor - 1) < NORM_ERROR for ratio, (factor, _) in zip(ratios, CALLS, strict=True))
    right = right and gain != 0 and LOW_GAIN < gain < HIGH_GAIN
    value = f"norms x{ratios[0]:.3g} and x{ratios[1]:.3g}, a step of one nat gains {gain:.3g}"
    findings.row(GRADIENT, SUMS, value, "same" if right else "differs")
    if right:
        findings.facts["reduction"] = "sum"
