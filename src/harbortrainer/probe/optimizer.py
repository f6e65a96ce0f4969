"""Whether Adam's settings reach the optimizer, and whether adapters are kept apart.

Gains are in nats of the summed logprob of the same 24 targets. A setting is honoured when the gain is where Adam puts
it, ignored when it is where it would be without the setting, and unclear in between: the margins are factors of two.
"""

import tinker

from harbortrainer.errors import BackendError
from harbortrainer.probe import losses
from harbortrainer.probe.report import ProbeFindings
from harbortrainer.probe.session import ProbeSession, SgdChain, TrainStep, adam, idle, run_chain, sgd, total

GROUP, ISOLATION = "optimizer", "several adapters"
RATES = (1e-5, 1e-4, 1e-3, 1e-2)  # tried in this order until the steps of signs show what eps does
VISIBLE = 0.5  # nats; what a step must gain before ratios are taken of it: far above a bf16 model's noise
TARGET = 1.0  # nats a step of plain gradient descent
Known = dict[str, bool | None]  # setting of Adam: whether it reaches the optimizer
DECAY = 1e-3  # learning rate times weight decay: only 0.1 %, since on some servers it hits all adapters


def share(value: float, whole: float, low: float, high: float) -> bool | None:
    """True when value is below low * whole, False when above high * whole, None between."""
    if abs(value) < low * whole:
        return True
    return False if abs(value) > high * whole else None


async def measure(session: ProbeSession, client: tinker.TrainingClient, findings: ProbeFindings) -> None:
    """Sets facts adam, reduction, decays_other_adapters and session.rate. Raises BackendError."""
    known = findings.facts.setdefault("adam", {})
    norm = await _signs(client, known)
    if known["eps"]:
        session.rate = await _rate(client, norm)
    if not session.rate:
        findings.facts["reduction"] = "unknown"
        findings.row(
            losses.GRADIENT, "reduction", "unclear", "unclear", "eps does not reach the optimizer: steps not linear"
        )
    else:
        await _linear(session, client, findings, known)
    _report(findings, known, norm)


async def _signs(client: tinker.TrainingClient, known: Known) -> float | None:
    """Steps with a tiny eps are of the size learning_rate in every element, whatever the gradient."""
    chain = SgdChain((), (), ())
    for rate in RATES:
        steps = [
            TrainStep(adam(0.0)),
            TrainStep(adam(rate)),
            TrainStep(adam(rate, eps=1e5)),
            TrainStep(adam(4 * rate)),
            TrainStep(adam(rate, beta2=0.9999)),  # bias correction of few steps: more than 20 times smaller
            TrainStep(adam(rate)),
        ]
        chain = await run_chain(client, steps)
        if chain.gains[1] > VISIBLE and share(chain.gains[2], chain.gains[1], 0.1, 0.5) is not None:
            break
    still, one, damped, four, remembered, again = chain.gains
    visible = one > VISIBLE
    ratio = four / one if visible else 0.0
    known["learning_rate"] = (
        True if visible and abs(still) < 0.1 * one and 2 < ratio < 8 else False if abs(ratio - 1) < 0.3 else None
    )
    known["eps"] = share(damped, one, 0.1, 0.5) if visible else None
    known["beta2"] = share(remembered, min(one, again), 0.4, 0.7) if visible and again > 0.3 * one else None
    return chain.grad_norms[0]


async def _rate(client: tinker.TrainingClient, norm: float | None) -> float:
    """The rate with which one step gains about TARGET; 0 when none is found."""
    rate = TARGET / norm**2 if norm else 1e-9
    for _ in range(8):
        gain = (await run_chain(client, [TrainStep(sgd(rate))])).gains[0]
        if TARGET / 4 < gain < TARGET * 4:
            return rate * TARGET / gain
        rate *= min(max(TARGET / gain, 0.01), 30.0) if gain > 0.01 else 30.0
    return 0.0


async def _linear(session: ProbeSession, client: tinker.TrainingClient, findings: ProbeFindings, known: Known) -> None:
    noise = await losses.noise_of(client, session.rate)
    await losses.measure_reduction(client, session.rate, noise, findings)
    plain = sgd(session.rate)
    clipped = TrainStep(sgd(session.rate, grad_clip_norm=1e-6))
    gains = (
        await run_chain(
            client, [TrainStep(plain), clipped, TrainStep(plain), idle(sgd(session.rate, beta1=0.9)), idle(plain)]
        )
    ).gains
    base = (gains[0] + gains[2]) / 2
    known["grad_clip_norm"] = share(gains[1], base, 0.1, 0.5)
    moved, unmoved = share(gains[3], base, 0.1, 0.4) is False, share(gains[4], base, 0.1, 0.4) is True
    known["beta1"] = True if moved and unmoved else False if moved != unmoved or not moved else None
    await _decay(session, client, findings, known, max(noise, abs(gains[4])))


async def _decay(
    session: ProbeSession, client: tinker.TrainingClient, findings: ProbeFindings, known: Known, noise: float
) -> None:
    """Weight decay by a step with gradient 0, of this adapter and of another user's."""
    try:
        twin = await session.adapter()
    except BackendError as error:
        twin = None
        findings.row(ISOLATION, "two at once", "not measured: one free slot", "not measured", str(error))
    try:
        start = total_before = 0.0
        if twin is not None:
            trained = await run_chain(twin, [TrainStep(sgd(session.rate)) for _ in range(6)])
            start, total_before = trained.totals[0], trained.totals[-1]
        rate = session.rate * 1e5
        chain = await run_chain(client, [idle(sgd(session.rate, weight_decay=DECAY / rate))])
        # the adapter's product A B shrinks by 2 * DECAY, and with it about the same share of its gain
        gained = chain.totals[0] - start if twin is not None else 10 * TARGET
        known["weight_decay"] = _shrunk(chain.gains[0], gained, noise)
        if twin is not None:
            moved = await total(twin) - total_before
            other = _shrunk(moved, total_before - start, noise)
            findings.facts["decays_other_adapters"] = other
            findings.row(ISOLATION, "two at once", "yes", "same")
            findings.judge(
                ISOLATION,
                "weight decay stays with its adapter (defect 5)",
                None if other is None else not other,
                ("yes", f"no: another adapter moved by {moved:.2g} nats"),
                "use weight_decay=0, or share the server with no other user",
            )
    finally:
        if twin is not None:
            await session.release(twin)


def _shrunk(moved: float, gained: float, noise: float) -> bool | None:
    """Whether the weights that gained `gained` nats were decayed by DECAY; None when noise hides it."""
    expected = 2 * DECAY * abs(gained)
    if expected < 4 * noise:
        return None
    return True if abs(moved) > 0.2 * expected else False if abs(moved) < 0.05 * expected else None


NOTES = {
    "learning_rate": "no run is possible",
    "beta1": "a run that needs another value is refused",
    "beta2": "a run that needs another value is refused",
    "eps": "a run that needs another value is refused",
    "weight_decay": "runs with weight_decay other than 0 are refused",
    "grad_clip_norm": "runs with grad_clip_norm other than 0 are refused",
}


def _report(findings: ProbeFindings, known: Known, norm: float | None) -> None:
    for name, note in NOTES.items():
        known.setdefault(name, None)
        findings.judge(GROUP, name, known[name], ("reaches the optimizer", "without effect"), note)
    value = "not reported" if norm is None else f"{norm:.4g}"
    findings.row(GROUP, "grad_norm in the answer", value, "info")


async def calibrate(client: tinker.TrainingClient) -> float:
    """Rate of plain gradient descent with which a step gains about TARGET; 0 when there is none."""
    norm = (await run_chain(client, [TrainStep(adam(0.0))])).grad_norms[0]
    return await _rate(client, norm)
