"""Losses: which ones the server accepts, which of their settings have an effect, and how it reduces their gradients."""

import asyncio
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tinker

from harbortrainer.backend.faults import SDK_ERRORS, plain
from harbortrainer.errors import BackendError
from harbortrainer.probe.report import ProbeFindings, Reduction, Verdict
from harbortrainer.probe.session import (
    CALL_LIMIT_SEC,
    ProbeSession,
    TrainStep,
    datum,
    run_chain,
    sgd,
    summed_loss,
    weighted,
)

GROUP = "losses"
NEEDED = ("cross_entropy", "importance_sampling", "ppo", "cispo")
DEFAULTS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
CHANGED = {"clip_low_threshold": 0.6, "clip_high_threshold": 1.6}


async def measure(session: ProbeSession, client: tinker.TrainingClient, findings: ProbeFindings) -> None:
    """Sets fact losses, by forward passes alone. Raises BackendError."""
    now = (await run_chain(client)).logprobs
    # ratios of 2 and 1/2 with advantages of both signs: every branch of a clipped loss
    sampled = [logprob - math.log(2.0) * (1 if index % 2 else -1) for index, logprob in enumerate(now)]
    advantages = [1.0 if index % 4 < 2 else -1.0 for index in range(len(now))]
    clipped = datum(logprobs=sampled, advantages=advantages)
    losses = findings.facts.setdefault("losses", {})
    for name in NEEDED:
        one = weighted() if name == "cross_entropy" else clipped
        await _loss(client, one, name, losses, findings)


async def _loss(
    client: tinker.TrainingClient, one: tinker.Datum, name: str, losses: dict[str, Any], findings: ProbeFindings
) -> None:
    clips = name in ("ppo", "cispo")
    base, refusal = await _value(client, one, name, DEFAULTS if clips else None)
    if refusal is not None:
        findings.row(GROUP, name, "refused", "unusable", f"loss_fn={name} is refused: {refusal[:90]}")
        return
    effective = []
    for setting in DEFAULTS if clips else ():
        value, _ = await _value(client, one, name, DEFAULTS | {setting: CHANGED[setting]})
        if base is not None and value is not None and abs(value - base) > 1e-3 * max(abs(base), 1.0):
            effective.append(setting)
    losses[name] = tuple(effective)
    ignored = [setting for setting in DEFAULTS if clips and setting not in effective]
    text = "accepted" + (f"; with an effect: {', '.join(effective)}" if effective else "")
    if ignored and base is None:
        findings.row(GROUP, name, text, "unclear", "reports no loss to tell by")
    elif ignored:
        findings.row(GROUP, name, text, "differs", f"refused with other values: {', '.join(ignored)}")
    else:
        findings.row(GROUP, name, text, "same")


async def _value(
    client: tinker.TrainingClient, one: tinker.Datum, name: Any, settings: Mapping[str, float] | None
) -> tuple[float | None, str | None]:
    """The summed loss where one is reported, and why the request is refused."""
    try:
        asked = client.forward([one], name, dict(settings) if settings else None)
        return summed_loss(await asyncio.wait_for(asked, CALL_LIMIT_SEC)), None
    except TimeoutError:
        raise BackendError(f"loss {name}: no answer") from None
    except SDK_ERRORS as error:
        return None, plain(error)


GRADIENT = "gradient"
TARGETS = (0.1, 0.3, 1.0, 3.0)  # nats of a plain step; the smallest that noise does not hide is tried first
CLEAR = 8.0  # a step must gain this many times the noise
N_NOISE = 6  # steps of a thousandth of the rate
BLOCK = 4  # steps before the next variant: plain, larger, variant, larger
NORM_ERROR = 0.1  # of a place that reported gradient norms give
VERDICTS: dict[Reduction, Verdict] = {"sum": "same", "example_mean": "differs", "unknown": "unusable"}


@dataclass(frozen=True, slots=True)
class Variant:
    what: str
    factor: int  # of the gradient, where losses are summed
    calls: tuple[tuple[tinker.Datum, ...], ...]


VARIANTS = (
    Variant("weights x4", 4, ((weighted(4.0),),)),
    Variant("the same datum twice", 2, ((weighted(), weighted()),)),
    Variant("two forward_backward calls", 2, ((weighted(),), (weighted(),))),
)


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a variant's gain: 0 is the gain of the plain rate, 1 that of the larger one."""

    value: float
    error: float

    @property
    def hidden(self) -> bool:
        """Whether noise alone could move a gain from 0 to the middle."""
        return not self.error < 0.5

    @property
    def meaning(self) -> Reduction:
        """The meaning of the nearer end, if it stays the nearer one with the largest error."""
        if abs(self.value - 1) + self.error < 0.5:
            return "sum"
        return "example_mean" if abs(self.value) + self.error < 0.5 else "unknown"


async def noise_of(client: tinker.TrainingClient, rate: float) -> float:
    """Nats by which gains scatter that should all be about 0: the rounding of bf16, or another order of sums."""
    chain = await run_chain(client, [TrainStep(sgd(rate * 1e-3))] * N_NOISE)
    middle = statistics.median(chain.gains)
    return max(1e-7 * abs(chain.totals[-1]), *(abs(gain - middle) for gain in chain.gains))


async def measure_reduction(client: tinker.TrainingClient, rate: float, noise: float, findings: ProbeFindings) -> None:
    """`rate`: of a step of one nat. Sets fact reduction. Raises BackendError."""
    found: list[Place] = []
    norms: list[Place] | None = None
    for target in TARGETS:
        if target < CLEAR * noise and target != TARGETS[-1]:
            continue
        chain = await run_chain(client, programme(rate * target))
        found, norms = places(chain.gains, noise), norm_places(chain.grad_norms)
        if all(place.meaning != "unknown" for place in found):
            break
    report(findings, found, norms, noise)


def programme(rate: float) -> list[TrainStep]:
    """BLOCK steps for each variant, then a plain one."""
    steps = []
    for variant in VARIANTS:
        larger = TrainStep(sgd(variant.factor * rate))
        steps += [TrainStep(sgd(rate)), larger, TrainStep(sgd(rate), variant.calls), larger]
    return [*steps, TrainStep(sgd(rate))]


def places(gains: Sequence[float], noise: float) -> list[Place]:
    """The place of each variant, from the gains of `programme`."""
    found = []
    for at in range(0, BLOCK * len(VARIANTS), BLOCK):
        plain = (gains[at] + gains[at + BLOCK]) / 2
        spread = (gains[at + 1] + gains[at + 3]) / 2 - plain
        if spread > 0:
            found.append(Place((gains[at + 2] - plain) / spread, 2 * noise / spread))
        else:
            found.append(Place(float("nan"), float("inf")))
    return found


def norm_places(norms: Sequence[float | None]) -> list[Place] | None:
    """The places by the gradient norms that the server reports; None where it reports none."""
    known = [norm for norm in norms if norm]
    if len(known) < len(norms):
        return None
    found = []
    for at, variant in zip(range(0, len(norms), BLOCK), VARIANTS, strict=False):
        ratio = 2 * known[at + 2] / (known[at] + known[at + BLOCK])
        found.append(Place((ratio - 1) / (variant.factor - 1), NORM_ERROR))
    return found


def report(findings: ProbeFindings, found: list[Place], norms: list[Place] | None, noise: float) -> None:
    """Rows and the fact. Reported norms decide only where noise hides the effect."""
    hidden = any(place.hidden for place in found)
    by_norms = hidden and norms is not None
    used = norms if hidden and norms is not None else found
    source = f"; by the reported norms, for noise of {noise:.2g} nats hides the effect" if by_norms else ""
    for variant, place in zip(VARIANTS, used, strict=True):
        more = variant.factor - 1
        value = f"gradient x{1 + more * place.value:.2f} ± {more * place.error:.2g}{source}"
        verdict = "unclear" if place.meaning == "unknown" else VERDICTS[place.meaning]
        findings.row(GRADIENT, variant.what, value, verdict, "" if verdict == "same" else "Tinker: sum")
    meanings: set[Reduction] = {place.meaning for place in used}
    reduction: Reduction = meanings.pop() if len(meanings) == 1 else "unknown"
    findings.facts["reduction"] = reduction
    unknown = f"training here is refused: the step size would be a guess (noise {noise:.2g} nats)"
    notes = {"sum": "", "example_mean": "advantages are scaled up, so that each step is the sum's", "unknown": unknown}
    findings.row(GRADIENT, "reduction", reduction, VERDICTS[reduction], notes[reduction])
