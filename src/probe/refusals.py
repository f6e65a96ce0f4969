"""What must be refused and is it: foreign token ids, malformed data, other base models, ranks. Forward passes only."""

import math
import re

import tinker

from src.backend.base_model import UNKNOWN_VOCABULARY, read_base_model
from src.errors import BackendError
from src.probe.bench import Bench
from src.probe.climb import total
from src.probe.data import TOKENS, datum, weighted
from src.probe.findings import Findings

GROUP = "refusals"
NO_MODEL = "no/such-model"
NO_RANK = 10_000
N = len(TOKENS) - 1
CHECKED_HERE = "checked here before anything is sent"


async def measure(bench: Bench, findings: Findings) -> None:
    """On an adapter of its own. Sets facts refuses_foreign_ids, max_rank. Raises BackendError."""
    await _base_model(bench, findings)
    await _rank(bench, findings)
    client = await bench.adapter()
    try:
        await _foreign_id(bench, client, findings)
        await _malformed(bench, client, findings)
    finally:
        await bench.release(client)


async def _foreign_id(bench: Bench, client: tinker.TrainingClient, findings: Findings) -> None:
    """A forward pass only: a step would spread NaN to every user of a server with defect 4."""
    size = read_base_model(bench.model_name).vocab_size
    token = 10_000_000 if size == UNKNOWN_VOCABULARY else size
    data = weighted(1.0, [*TOKENS[:-2], token, TOKENS[-1]])
    refusal = await bench.refusal("forward", client.forward([data], "cross_entropy"))
    if refusal is None:
        finite = math.isfinite(await total(client))
        value = "accepted" + ("" if finite else "; other data is NaN now")
    else:
        value = f"refused: {refusal}"[:80]
    refused = refusal is not None and not slow(refusal)
    findings.facts["refuses_foreign_ids"] = refused
    findings.judge(GROUP, "token id beyond the vocabulary (defect 4)", refused, (value, value), CHECKED_HERE)


async def _malformed(bench: Bench, client: tinker.TrainingClient, findings: Findings) -> None:
    """The last may block the client: a server that fails is asked again and again."""
    inputs = tinker.ModelInput.from_ints(TOKENS[:-1])
    targets = tinker.TensorData(data=TOKENS[1:-3], dtype="int64")
    ones = tinker.TensorData(data=[1.0] * N, dtype="float32")
    fewer = tinker.TensorData(data=[1.0] * (N - 3), dtype="float32")
    cases = (
        ("targets shorter than the input", "cross_entropy", {"target_tokens": targets, "weights": fewer}),
        ("a weight that is NaN", "cross_entropy", dict(weighted(math.nan).loss_fn_inputs)),
        ("policy loss without logprobs", "importance_sampling", dict(datum(advantages=[0.0] * N).loss_fn_inputs)),
        ("no target_tokens", "cross_entropy", {"weights": ones}),
    )
    for what, loss_fn, values in cases:
        one = tinker.Datum(model_input=inputs, loss_fn_inputs=values)
        refusal = await bench.refusal(what, client.forward([one], loss_fn))  # pyright: ignore[reportArgumentType]
        if refusal is not None and slow(refusal):
            findings.row(GROUP, what, "fails; the SDK asks again for minutes", "differs", CHECKED_HERE)
        else:
            findings.judge(GROUP, what, refusal is not None, ("refused", "accepted in silence"), CHECKED_HERE)


async def _base_model(bench: Bench, findings: Findings) -> None:
    try:
        client = await bench.adapter(NO_MODEL)
    except BackendError as error:
        if "slot" in str(error):
            findings.row(GROUP, "another base model", "not measured: no free slot", "not measured")
        else:
            findings.row(GROUP, "another base model", "refused", "same")
        return
    await bench.release(client)
    findings.row(GROUP, "another base model", "accepted: trains its own", "differs", CHECKED_HERE)


async def _rank(bench: Bench, findings: Findings) -> None:
    try:
        client = await bench.adapter(rank=NO_RANK)
    except BackendError as error:
        found = re.search(r"at most (\d+)|between \d+ and (\d+)", str(error))
        limit = int(found.group(1) or found.group(2)) if found else findings.facts.get("max_rank")
        findings.facts["max_rank"] = limit
        findings.row(GROUP, f"LoRA rank {NO_RANK}", f"refused; at most {limit or 'unknown'}", "same")
        return
    await bench.release(client)
    findings.row(GROUP, f"LoRA rank {NO_RANK}", "accepted", "differs", "whether it has that rank is not known")


def slow(refusal: str) -> bool:
    """No refusal: the SDK was still asking."""
    return "no answer within" in refusal
