"""Losses: which ones the server accepts, which of their settings have an effect, and how it reduces their gradients."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tinker

from harbortrainer.backend.faults import plain, sdk_errors
from harbortrainer.errors import BackendError
from harbortrainer.probe.noise import MARGIN
from harbortrainer.probe.report import ProbeFindings, Reduction, Verdict
from harbortrainer.probe.session import (
    CALL_LIMIT_SEC,
    ProbeSession,
    TrainStep,
    datum,
    drop_gradient,
    pair,
    run_chain,
    sgd,
    summed_loss,
    weighted,
)

GROUP = "losses"
NEEDED = ("cross_entropy", "importance_sampling", "ppo", "cispo")
DEFAULTS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
CHANGED = {"clip_low_threshold": 0.6, "clip_high_threshold": 1.6}


async def measure(session: ProbeSession, findings: ProbeFindings) -> None:
    """Set fact losses, by passes whose gradient is dropped. Raises BackendError."""
    client = session.client
    now = (await run_chain(client)).logprobs
    # ratios of 2 with advantage 1, and 1/2 with -1: what every clipped loss clips
    sampled = [logprob - math.log(2.0) * (1 if index % 2 else -1) for index, logprob in enumerate(now)]
    advantages = [1.0 if index % 2 else -1.0 for index in range(len(now))]
    clipped = datum(logprobs=sampled, advantages=advantages)
    losses = findings.facts.setdefault("losses", {})
    for name in NEEDED:
        data = pair() if name == "cross_entropy" else (clipped, clipped)
        await _loss(client, data, name, {"ppo": [1.0] * len(now), "cispo": now}.get(name, ()), losses, findings)
    await drop_gradient(session, client)


async def _loss(
    client: tinker.TrainingClient,
    data: tuple[tinker.Datum, ...],
    name: str,
    factors: Sequence[float],
    losses: dict[str, Any],
    findings: ProbeFindings,
) -> None:
    """`factors`: of a clipped ratio in each target's loss; none for a loss that does not clip."""
    base, refusal = await _value(client, data, name, DEFAULTS if factors else None)
    if refusal is not None:
        findings.row(GROUP, name, "refused", "unusable", f"loss_fn={name} is refused: {refusal[:90]}")
        return
    effective = []
    for setting in DEFAULTS if factors else ():
        value, _ = await _value(client, data, name, DEFAULTS | {setting: CHANGED[setting]})
        side = factors[1::2] if setting == "clip_high_threshold" else factors[::2]
        expected = len(data) * abs(CHANGED[setting] - DEFAULTS[setting]) * sum(map(abs, side))
        if base is not None and value is not None and abs(value - base) > expected / 2:
            effective.append(setting)
    losses[name] = tuple(effective)
    ignored = [setting for setting in DEFAULTS if factors and setting not in effective]
    text = "accepted" + (f"; with an effect: {', '.join(effective)}" if effective else "")
    if ignored and base is None:
        findings.row(GROUP, name, text, "unclear", "reports no loss to tell by")
    elif ignored:
        findings.row(GROUP, name, text, "differs", f"refused with other values: {', '.join(ignored)}")
    else:
        findings.row(GROUP, name, text, "same")


async def _value(
    client: tinker.TrainingClient, data: tuple[tinker.Datum, ...], name: Any, settings: Mapping[str, float] | None
) -> tuple[float | None, str | None]:
    """The summed loss where one is reported, and why the request is refused."""
    try:
        asked = client.forward_backward(list(data), name, dict(settings) if settings else None)
        return summed_loss(await asyncio.wait_for(asked, CALL_LIMIT_SEC)), None
    except TimeoutError:
        raise BackendError(f"loss {name}: no answer") from None
    except sdk_errors() as error:
        return None, plain(error)


GRADIENT = "gradient"
TARGETS = (0.1, 0.3, 1.0, 3.0)  # nats of a plain step; the smallest that noise does not hide is tried first
CLEAR = 8.0  # a step must gain this many times the noise
BLOCK = 4  # steps before the next variant: plain, larger, variant, larger
NOISY = 0.2  # an error of a place above which noise, not the server, may be why it is unclear
NORM_ERROR = 0.1  # of a place that reported gradient norms give
VERDICTS: dict[Reduction, Verdict] = {"sum": "same", "example_mean": "differs", "unknown": "unusable"}


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant: `plain`, `larger` weights and `calls` have the same gradient but for `factor`, where losses are
    summed.
    """

    what: str
    factor: int
    calls: tuple[tuple[tinker.Datum, ...], ...]
    plain: tuple[tuple[tinker.Datum, ...], ...] = (pair(),)


VARIANTS = (
    Variant("weights x4", 4, (pair(4.0),)),
    Variant("two forward_backward calls", 2, (pair(), pair())),
)
TWICE = Variant("the same datum twice", 2, ((weighted(), weighted()),), ((weighted(),),))


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a variant's gain: 0 is the gain of the plain rate, 1 that of the larger one."""

    value: float
    error: float

    @property
    def meaning(self) -> Reduction:
        """The meaning of the nearer end, if it stays the nearer one with the largest error."""
        if abs(self.value - 1) + self.error < 0.5:
            return "sum"
        return "example_mean" if abs(self.value) + self.error < 0.5 else "unknown"


async def measure_reduction(session: ProbeSession, findings: ProbeFindings) -> None:
    """Set fact reduction; needs the session's rate and noise. Raises BackendError."""
    results = list[LossResult]()
    for variants in (VARIANTS, (TWICE,)):
        found, norms = await _places(session, variants)
        results += _by_norms_where_hidden(variants, found, norms, session.noise)
    report(findings, results, session.noise)


@dataclass(frozen=True, slots=True)
class LossResult:
    """What one variant shows."""

    what: str
    value: str
    meaning: Reduction


async def _places(session: ProbeSession, variants: Sequence[Variant]) -> tuple[list[Place], list[Place] | None]:
    """By gains, and by reported norms, with the smallest step that noise does not hide."""
    found: list[Place] = []
    norms: list[Place] | None = None
    rate = session.tuned
    for target in TARGETS:
        if target < min(CLEAR * session.noise, 1.0):
            continue
        if target > 1 and norms is not None:
            break  # noise hides a step of one nat, not the norms
        chain = await session.run(programme(rate * target, variants))
        found = places(chain.gains, session.noise, variants)
        norms = norm_places(chain.grad_norms, variants)
        if all(place.meaning != "unknown" for place in found):
            break
    return found, norms


def programme(rate: float, variants: Sequence[Variant] = VARIANTS) -> list[TrainStep]:
    """Return BLOCK steps for each variant, then a plain one."""
    steps = []
    for variant in variants:
        plain, larger = sgd(rate), sgd(variant.factor * rate)
        steps += [TrainStep(plain, variant.plain), TrainStep(larger, variant.plain)]
        steps += [TrainStep(plain, variant.calls), TrainStep(larger, variant.plain)]
    return [*steps, TrainStep(sgd(rate), variants[-1].plain)]


def places(gains: Sequence[float], noise: float, variants: Sequence[Variant] = VARIANTS) -> list[Place]:
    """Return the place of each variant, from the gains of `programme`."""
    found = []
    for at in range(0, BLOCK * len(variants), BLOCK):
        plain = (gains[at] + gains[at + BLOCK]) / 2
        spread = (gains[at + 1] + gains[at + 3]) / 2 - plain
        if spread > 0:
            found.append(Place((gains[at + 2] - plain) / spread, MARGIN * noise / spread))
        else:
            found.append(Place(float("nan"), float("inf")))
    return found


def norm_places(norms: Sequence[float | None], variants: Sequence[Variant] = VARIANTS) -> list[Place] | None:
    """Return the places by the gradient norms that the server reports; None where it reports none."""
    known = [norm for norm in norms if norm]
    if len(known) < len(norms):
        return None
    found = []
    for at, variant in zip(range(0, len(norms), BLOCK), variants, strict=False):
        ratio = 2 * known[at + 2] / (known[at] + known[at + BLOCK])
        found.append(Place((ratio - 1) / (variant.factor - 1), NORM_ERROR))
    return found


def _by_norms_where_hidden(
    variants: Sequence[Variant], found: list[Place], norms: list[Place] | None, noise: float
) -> list[LossResult]:
    """Reported norms decide only where noise hides the effect."""
    hidden = norms is not None and any(place.meaning == "unknown" and place.error > NOISY for place in found)
    source = f"; by the reported norms, for noise of {noise:.2g} nats hides the effect" if hidden else ""
    results = []
    for variant, place in zip(variants, norms if hidden and norms is not None else found, strict=True):
        more = variant.factor - 1
        value = f"gradient x{1 + more * place.value:.2f} ± {more * place.error:.2g}{source}"
        results.append(LossResult(variant.what, value, place.meaning))
    return results


def report(findings: ProbeFindings, results: Sequence[LossResult], noise: float) -> None:
    """Add the rows and the fact."""
    for one in results:
        verdict = "unclear" if one.meaning == "unknown" else VERDICTS[one.meaning]
        findings.row(GRADIENT, one.what, one.value, verdict, "" if verdict == "same" else "Tinker: sum")
    meanings: set[Reduction] = {one.meaning for one in results}
    reduction: Reduction = meanings.pop() if len(meanings) == 1 else "unknown"
    findings.facts["reduction"] = reduction
    unknown = f"training here is refused: the step size would be a guess (noise {noise:.2g} nats)"
    notes = {"sum": "", "example_mean": "advantages are scaled up, so that each step is the sum's", "unknown": unknown}
    findings.row(GRADIENT, "reduction", reduction, VERDICTS[reduction], notes[reduction])
