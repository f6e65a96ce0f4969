"""Whether Adam's settings reach the optimizer.

Gains are in nats of the summed logprob of the same 24 targets. A setting is honoured when the gain is nearer to where
Adam puts it than to where it would be without the setting. Steps are repeated until noise cannot turn the answer.
"""

from collections.abc import Sequence

from harbortrainer.probe import losses
from harbortrainer.probe.noise import MARGIN, deviation, nearer, repeats, scatter
from harbortrainer.probe.report import ProbeFindings
from harbortrainer.probe.session import ProbeSession, SgdChain, TrainStep, adam, idle, sgd

GROUP = "optimizer"
RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # tried in this order until steps of signs gain enough
FIRST_SIGN, ENOUGH_SIGN = 0.25, 3.0  # nats of a step, before N_PLAIN more are taken; of those
TARGET = 1.0  # nats a step of plain gradient descent
FIRST_FACTOR = 1.0  # rate x norm², where losses are summed; a server that averages them gains more
N_WARM = 4  # steps of signs
FEW_REPEATS = 2
MORE_TRIES = 2  # on fresh adapters, for what noise has left unclear
N_PLAIN, N_TINY = 6, 4  # steps of that rate, and of a thousandth of it, that show the noise
Known = dict[str, bool | None]  # setting of Adam: whether it reaches the optimizer


async def measure(session: ProbeSession, findings: ProbeFindings) -> None:
    """Set facts adam, reduction and the session's. Raises BackendError."""
    known = findings.facts.setdefault("adam", {})
    fresh = await session.run()
    await _signs(session, known)
    for _ in range(MORE_TRIES):
        if None in (known.get("learning_rate"), known.get("eps"), known.get("beta2")):
            await session.renew()
            await _signs(session, known)
    if known.get("eps"):
        await warmed(session)
        await calibrate(session)
    if session.rate:
        await losses.measure_reduction(session, findings)
        await warmed(session)
        await _linear(session, known)
        for _ in range(MORE_TRIES):
            if None in (known["grad_clip_norm"], known["beta1"]):
                session.repeats = repeats(session.noise, TARGET)  # the first try may have seen more noise
                await warmed(session, again=True)
                await _linear(session, known)
    else:
        findings.facts["reduction"] = "unknown"
        why = "eps does not reach the optimizer: steps not linear"
        findings.row(losses.GRADIENT, "reduction", "unclear", "unclear", why)
    _report(session, findings, known, fresh.norms_at[0])


async def warmed(session: ProbeSession, again: bool = False) -> None:
    """Put a fresh adapter in the place of one that many steps were taken with (or `again`): it gains more.

    It takes some steps first: at its start one half has no gradient.
    """
    if again or session.repeats > FEW_REPEATS:
        await session.renew()
        await session.run([sign_step(session)] * (N_WARM + session.repeats))


def sign_step(session: ProbeSession) -> TrainStep:
    """Return a step of the size `sign_rate` in every element, whatever the gradient."""
    return TrainStep(adam(session.sign_rate))


async def _visible(session: ProbeSession) -> bool:
    """Sets `sign_rate`, to the smallest of RATES that gains enough to be judged, noise and repeats; False without."""
    for rate in RATES:
        steps = [TrainStep(adam(rate))]
        if (await session.run(steps)).gains[0] < FIRST_SIGN:
            continue
        gains = (await session.run(steps * N_PLAIN)).gains
        session.noise = max(session.noise, scatter(gains))
        if sum(gains) > max(ENOUGH_SIGN, MARGIN * session.noise):
            session.sign_rate, session.repeats = rate, repeats(session.noise, sum(gains) / N_PLAIN)
            return True
    return False


async def _signs(session: ProbeSession, known: Known) -> None:
    """learning_rate, eps and beta2: each between steps of the same rate."""
    if not await _visible(session):
        return
    rate = session.sign_rate
    changed = (
        adam(0.0),
        adam(rate / 10),
        adam(rate, eps=1e5),
        adam(rate, beta2=0.9999),  # bias correction of few steps: about 10 to 20 times smaller
    )
    blocks = [[TrainStep(optimizer)] for optimizer in changed]
    (still, tenth, damped, remembered), plain = await _between(session, [sign_step(session)], blocks)
    stands = nearer(still, 0.0, plain[0], session.noise)
    moves = nearer(tenth, 0.1 * plain[1], plain[1], session.noise)
    known["learning_rate"] = stands if stands is moves else None  # an ignored rate gives both away
    known["eps"] = nearer(damped, 0.0, plain[2], session.noise)
    known["beta2"] = nearer(remembered, 0.1 * plain[3], plain[3], session.noise)


async def _between(
    session: ProbeSession, plain: Sequence[TrainStep], changed: Sequence[Sequence[TrainStep]]
) -> tuple[list[float], list[float]]:
    """Gains of each of `changed`, taken `repeats` times, and of `plain` there: the mean of before and after.

    All blocks are of the same length. The plain ones may raise the session's noise.
    """
    length = session.repeats * len(plain)
    blocks = [plain, *(block for one in changed for block in (one, plain))]
    gains = (await session.run([step for block in blocks for step in [*block] * session.repeats])).gains
    sums = [sum(gains[at : at + length]) for at in range(0, len(gains), length)]
    ordinary = [gain for index, gain in enumerate(gains) if index // length % 2 == 0]
    if len(plain) == 1:
        session.noise = max(session.noise, scatter(ordinary))
    return sums[1::2], [(before + after) / 2 for before, after in zip(sums[:-1:2], sums[2::2], strict=True)]


async def calibrate(session: ProbeSession) -> None:
    """Set the session's rate, with which a plain step gains about TARGET (0 when none does), noise and repeats."""
    factor = FIRST_FACTOR
    norm = (await session.run()).norms_at[0]
    for _ in range(12):
        rate = factor / norm**2 if norm else factor * 1e-9
        plain, tiny = TrainStep(sgd(rate)), TrainStep(sgd(rate * 1e-3))
        chain = await session.run([plain] * 2)
        gain = sum(chain.gains) / 2
        if TARGET / 4 < gain < TARGET * 4:
            chain = await session.run([plain] * N_PLAIN + [tiny] * N_TINY)
            gain = sum(chain.gains[:N_PLAIN]) / N_PLAIN
            if TARGET / 4 < gain < TARGET * 4:
                _note(session, rate, factor if norm else 0.0, chain)
                return
        elif gain < -TARGET / 4:  # far too large: what is left of the adapter is of no use
            await session.renew()
            chain, factor = await session.run([sign_step(session)] * N_WARM * bool(session.sign_rate)), factor / 10
        else:
            factor *= min(max(TARGET / gain, 0.01), 30.0) if gain > 0.01 else 30.0 if norm is None else 3.0
        norm = chain.norms_at[-1]


def _note(session: ProbeSession, rate: float, factor: float, chain: SgdChain) -> None:
    plain, tiny = chain.gains[:N_PLAIN], chain.gains[N_PLAIN:]
    session.rate, session.rate_norm2 = rate, factor
    session.noise = max(1e-7 * abs(chain.totals[-1]), deviation(tiny), scatter(plain))
    session.repeats = repeats(session.noise, sum(plain) / N_PLAIN)
    still = chain.logprobs_at[N_PLAIN + 1 :]
    session.token_noise = sum(abs(a - b) for a, b in zip(still[0], still[-1], strict=True)) / len(still[0])


async def _linear(session: ProbeSession, known: Known) -> None:
    """grad_clip_norm between plain steps; beta1 by steps without gradient, each after a plain one."""
    plain = sgd(session.tuned)
    clip = TrainStep(plain.model_copy(update={"grad_clip_norm": 1e-6}))
    (clipped,), (base,) = await _between(session, [TrainStep(plain)], [[clip]])
    known["grad_clip_norm"] = nearer(clipped, 0.0, base, session.noise)
    plain = sgd(session.tuned)
    memory = [TrainStep(plain), idle(plain.model_copy(update={"beta1": 0.9}))]
    (moved,), (unmoved,) = await _between(session, [TrainStep(plain), idle(plain)], [memory])
    known["beta1"] = nearer(moved, 1.9 * unmoved, unmoved, session.noise)


NOTES = {
    "learning_rate": "no run is possible",
    "beta1": "a run that needs another value is refused",
    "beta2": "a run that needs another value is refused",
    "eps": "a run that needs another value is refused",
    "grad_clip_norm": "runs with grad_clip_norm other than 0 are refused",
}


def _report(session: ProbeSession, findings: ProbeFindings, known: Known, norm: float | None) -> None:
    for name, note in NOTES.items():
        known.setdefault(name, None)
        findings.judge(GROUP, name, known[name], ("reaches the optimizer", "without effect"), note)
    value = "not reported" if norm is None else f"{norm:.4g}"
    findings.row(GROUP, "grad_norm in the answer", value, "info")
    if session.rate:
        text = f"{session.noise:.2g} nats a step; each effect is taken from {session.repeats} steps"
        findings.row(GROUP, "noise", text, "info")
