"""The same data, seeds and steps on two servers: do they train and sample alike?"""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import tinker
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harbortrainer.errors import BackendError
from harbortrainer.policy.chat_template import hub_options
from harbortrainer.probe.optimizer import calibrate
from harbortrainer.probe.sampling import asked, known, settings
from harbortrainer.probe.session import (
    NEW_TOKENS,
    PROMPT,
    PROMPT_TOKENS,
    TOKENS,
    ProbeSession,
    SgdChain,
    TrainStep,
    adam,
    drop_gradient,
    run_chain,
    sgd,
    summed_loss,
    tokens_of,
    weighted,
)

# Datums of different weights: one gradient when summed, another when each is averaged first.
DATA = (weighted(), weighted(0.5, tokens_of(1)), weighted(2.0, tokens_of(2)))
LEARNING_RATE = 1e-3
N_SAMPLES, N_BOOTSTRAP = 16, 1000


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest differences of two computations of the same value.

    fp32: sums in another order differ by 1e-6 of a logprob; Adam amplifies that, since it flips the sign of an element
    whose gradient is nearly 0. bf16: a logprob has 8 bits, 0.03 nats at 8 nats.
    """

    precision: str
    logprob: float  # largest difference of one token, nats
    relative: float  # of a loss, of a gradient
    trained: float  # like logprob, after optimizer steps
    kl: float  # nats a token


FP32 = Tolerance("fp32", 1e-3, 1e-2, 2e-2, 2e-3)
BF16 = Tolerance("bf16", 1e-1, 5e-2, 3e-1, 2e-2)


@dataclass(frozen=True, slots=True)
class ParityRow:
    what: str
    a: str
    b: str
    difference: str
    tolerance: str
    verdict: Literal["equal", "differs", "unclear", "not measured"]


@dataclass(frozen=True, slots=True)
class ParityReport:
    a: str
    b: str
    model_name: str
    precision: str
    rows: tuple[ParityRow, ...]

    @property
    def equal(self) -> bool:
        return not any(row.verdict == "differs" for row in self.rows)

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"equal": self.equal}, indent=1)


@dataclass(frozen=True, slots=True)
class ServerResult:
    """What one server did. `loss`: as reported, or None. Logprobs are of TOKENS' 24 targets."""

    first: SgdChain
    loss: float | None
    chain: SgdChain
    samples: tuple[tuple[tuple[int, ...], tuple[float, ...]], ...]  # tokens and their logprobs
    path: str  # of the sampler after training


async def compare(a: ProbeSession, b: ProbeSession, steps: int) -> ParityReport:
    """Run the programme on both servers, then remove what it made. Raises BackendError when one cannot be measured."""
    tolerance = await asyncio.to_thread(tolerance_of, a.model_name)
    try:
        await a.renew()
        await calibrate(a)
        b.rate = a.rate
        await a.release(a.client)
        side_a, side_b = await run_programme(a, steps), await run_programme(b, steps)
        rows = _trained_rows(side_a, side_b, steps, tolerance)
        rows.append(await _kl_row("A", side_a, b, side_b, tolerance))
        rows.append(await _kl_row("B", side_b, a, side_a, tolerance))
    finally:
        await asyncio.shield(asyncio.gather(a.close(), b.close()))
    return ParityReport(a.url, b.url, a.model_name, tolerance.precision, tuple(rows))


def tolerance_of(model_name: str) -> Tolerance:
    """Return the tolerance for the type of the base model's weights; the wider one where that cannot be read."""
    from transformers import AutoConfig  # takes a second: not at import

    try:
        dtype = str(getattr(AutoConfig.from_pretrained(model_name, **hub_options(model_name)), "dtype", ""))
    except (OSError, ValueError, KeyError):
        return BF16
    return FP32 if "float32" in dtype else BF16


async def run_programme(session: ProbeSession, steps: int) -> ServerResult:
    """Return the fixed programme: a forward pass, a step of plain gradient descent, `steps` of Adam, samples."""
    client = await session.adapter()
    first = await run_chain(client)
    output = await session.wait("forward_backward", client.forward_backward(list(DATA), "cross_entropy"))
    await drop_gradient(session, client)
    ordinary = tinker.AdamParams(learning_rate=LEARNING_RATE, beta1=0.9, beta2=0.95, eps=1e-12)
    optimizers = [adam(0.0), sgd(session.rate or 1e-9), *[ordinary] * steps]
    chain = await run_chain(client, [TrainStep(optimizer, (DATA,)) for optimizer in optimizers])
    path = await session.published(client, "parity")
    sampler = await session.sampler(path)
    answer = await session.wait("sampling", sampler.sample(PROMPT, N_SAMPLES, settings(seed=0)))
    samples = tuple((tuple(s.tokens), tuple(map(float, s.logprobs or ()))) for s in answer.sequences)
    return ServerResult(first, summed_loss(output), chain, samples, path)


def _trained_rows(a: ServerResult, b: ServerResult, steps: int, tolerance: Tolerance) -> list[ParityRow]:
    gains = a.chain.gains[1], b.chain.gains[1]
    return [
        _apart("logprobs of the fresh adapter (= base model)", a.first, b.first, tolerance.logprob),
        _ratio("reported loss of 3 datums", a.loss, b.loss, tolerance.relative),
        _ratio("reported gradient norm", a.chain.grad_norms[0], b.chain.grad_norms[0], tolerance.relative),
        _ratio("gain of a plain gradient step (reduction; LoRA init)", *gains, 2 * tolerance.relative),
        _apart(f"logprobs after {steps} Adam steps", a.chain, b.chain, tolerance.trained),
    ]


def _apart(what: str, a: SgdChain, b: SgdChain, limit: float) -> ParityRow:
    apart = float(np.abs(np.array(a.logprobs) - np.array(b.logprobs)).max())
    verdict = "equal" if apart <= limit else "differs"  # NaN differs
    one, other = f"{math.fsum(a.logprobs):.4f}", f"{math.fsum(b.logprobs):.4f}"
    return ParityRow(what, one, other, f"{apart:.2g} nats, largest of a token", f"{limit:g}", verdict)


def _ratio(what: str, a: float | None, b: float | None, limit: float) -> ParityRow:
    one, other = ("not reported" if value is None else f"{value:.5g}" for value in (a, b))
    if a is None or b is None:
        return ParityRow(what, one, other, "", f"{limit:.1%}", "not measured")
    apart = abs(a - b) / max(abs(a), abs(b), 1e-12)
    return ParityRow(what, one, other, f"{apart:.2%}", f"{limit:.1%}", "equal" if apart <= limit else "differs")


async def _kl_row(
    name: str, mine: ServerResult, other: ProbeSession, others: ServerResult, tolerance: Tolerance
) -> ParityRow:
    """Estimate KL(mine || other) from samples of mine that the other scores, without those that ended early."""
    what = f"KL a token, {name}'s samples scored by the other"
    whole = [(tokens, logprobs) for tokens, logprobs in mine.samples if len(tokens) == NEW_TOKENS]
    mean = f"{np.mean([np.mean(logprobs) for _, logprobs in whole]):.4f}" if whole else ""
    try:
        if len(whole) < N_SAMPLES // 2:
            raise BackendError("too many answers ended early")
        scored = await _scores(other, others.path, [tokens for tokens, _ in whole])
    except BackendError as error:
        return ParityRow(what, "", "", str(error)[:80], f"{tolerance.kl:g}", "not measured")
    own = np.array([logprobs for _, logprobs in whole])
    ratios = scored - own
    ratios = (np.exp(ratios) - 1 - ratios).mean(axis=1)  # unbiased, never below 0, and of little variance
    low, high = bootstrap(ratios)
    inside = -tolerance.kl <= low and high <= tolerance.kl
    outside = low > tolerance.kl or high < -tolerance.kl
    verdict = "equal" if inside else "differs" if outside or not np.isfinite(ratios).all() else "unclear"
    one, two = (mean, f"{scored.mean():.4f}") if name == "A" else (f"{scored.mean():.4f}", mean)
    return ParityRow(what, one, two, f"{ratios.mean():.2g} [{low:.2g}, {high:.2g}]", f"{tolerance.kl:g}", verdict)


async def _scores(session: ProbeSession, path: str, samples: Sequence[Sequence[int]]) -> np.ndarray:
    """Logprobs of each sample's tokens under the sampler at `path`, shape (samples, NEW_TOKENS)."""
    sampler = await session.sampler(path)

    async def one(tokens: Sequence[int]) -> Sequence[float]:
        sequence = tinker.ModelInput.from_ints([*TOKENS[:PROMPT_TOKENS], *tokens])
        return known(await asked(session, sampler, sequence))[-NEW_TOKENS:]

    return np.array(await asyncio.gather(*map(one, samples)), float)


def bootstrap(values: np.ndarray) -> tuple[float, float]:
    """Return 95 % interval of the mean; deterministic."""
    drawn = np.random.default_rng(0).choice(values, (N_BOOTSTRAP, len(values)))
    low, high = np.percentile(drawn.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def show_parity(report: ParityReport, console: Console) -> None:
    console.print(f"A = {report.a}, B = {report.b}, {report.model_name}; tolerances for {report.precision} weights")
    table = Table(pad_edge=False)
    for name in ("", "A", "B", "difference", "tolerance", "verdict"):
        table.add_column(name, overflow="fold")
    colours = {"equal": "green", "differs": "red", "unclear": "magenta"}
    for row in report.rows:
        cells = map(Text, (row.what, row.a, row.b, row.difference, row.tolerance))
        table.add_row(*cells, Text(row.verdict, colours.get(row.verdict, "dim")))
    console.print(table)
    missing = sum(row.verdict == "not measured" for row in report.rows)
    note = f"; {missing} of {len(report.rows)} not measured" if missing else ""
    console.print(("equal within the tolerances" if report.equal else "they differ") + note)
