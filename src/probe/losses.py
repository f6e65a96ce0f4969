"""Which losses there are, and which of their settings change the loss that they report. Forward passes only."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import tinker

from src.backend.faults import SDK_ERRORS, plain
from src.errors import BackendError
from src.probe.bench import CALL_LIMIT_SEC, Bench
from src.probe.climb import climb, policy, weighted
from src.probe.report import Findings

GROUP = "losses"
NEEDED = ("cross_entropy", "importance_sampling", "ppo", "cispo")
DEFAULTS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
CHANGED = {"clip_low_threshold": 0.6, "clip_high_threshold": 1.6}


async def measure(bench: Bench, client: tinker.TrainingClient, findings: Findings) -> None:
    """Sets fact losses. Raises BackendError."""
    now = (await climb(client)).logprobs
    # ratios of 2 and 1/2 with advantages of both signs: every branch of a clipped loss
    ratios = [math.log(2.0) * (1 if index % 2 else -1) for index in range(len(now))]
    advantages = [1.0 if index % 4 < 2 else -1.0 for index in range(len(now))]
    sampled = [lp - r for lp, r in zip(now, ratios, strict=True)]
    data = policy(sampled, advantages)
    losses = findings.facts.setdefault("losses", {})
    for name in NEEDED:
        one = weighted() if name == "cross_entropy" else data
        await _loss(client, one, name, losses, findings)


async def _loss(
    client: tinker.TrainingClient, one: tinker.Datum, name: str, losses: dict[str, Any], findings: Findings
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
    """Summed loss where one is reported, and why the request is refused."""
    try:
        asked = client.forward([one], name, dict(settings) if settings else None)
        output = await asyncio.wait_for(asked, CALL_LIMIT_SEC)
    except TimeoutError:
        raise BackendError(f"loss {name}: no answer") from None
    except SDK_ERRORS as error:
        return None, plain(error)
    elementwise = output.loss_fn_outputs[0].get("elementwise_loss")
    if elementwise is not None:
        return math.fsum(map(float, elementwise.data)), None
    return output.metrics.get("loss:sum"), None
