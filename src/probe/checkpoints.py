"""Saved states: whether the optimizer's comes back, time-to-live, one name twice, samplers of an unloaded model."""

import tinker

from src.backend.faults import SDK_ERRORS, plain
from src.errors import BackendError
from src.probe.bench import Bench
from src.probe.climb import Climb, Step, climb, idle, sgd
from src.probe.data import PROMPT
from src.probe.findings import Findings
from src.probe.sampling import settings

GROUP = "checkpoints"
TTL_SEC = 3600
TTL_LIMIT_SEC = 20.0  # the SDK asks a server that fails for minutes


async def measure(bench: Bench, client: tinker.TrainingClient, findings: Findings) -> None:
    """Gives the client's slot back, so that one free slot is enough. Sets facts ttl, optimizer_state_restored."""
    await climb(client, [Step(sgd(bench.rate))])  # momentum is now this gradient
    path = await bench.saved(client, "state")
    await _double_name(bench, client, findings)
    await _used_model(bench, client, path, findings)
    alive = await _momentum(bench, client)
    await _sent_twice(bench, client, findings)
    sampler = await bench.sampler(await bench.published(client, "orphan")) if findings.facts["can_sample"] else None
    await bench.release(client)
    if sampler is not None:
        await _orphan(bench, sampler, findings)
    chains = []
    for optimizer in (True, False):
        copy = await bench.restored(path, optimizer)
        try:
            chains.append(await _momentum(bench, copy))
            if not optimizer:
                await _ttl(bench, copy, findings)
        finally:
            await bench.release(copy)
    _judge_restored(findings, alive, *chains)


async def _momentum(bench: Bench, client: tinker.TrainingClient) -> Climb:
    """A step without gradient: all that moves the weights is the momentum of the step before."""
    return await climb(client, [idle(sgd(bench.rate, beta1=0.9))])


def _judge_restored(findings: Findings, alive: Climb, with_state: Climb, without: Climb) -> None:
    step = alive.gains[0]
    weights = max(abs(chain.totals[0] - alive.totals[0]) for chain in (with_state, without))
    findings.row(
        GROUP,
        "weights restored",
        f"logprobs differ by {weights:.2g}",
        "same" if weights < 0.05 * abs(step) + 1e-4 * abs(alive.totals[0]) else "differs",
    )
    told_apart = abs(without.gains[0]) < 0.3 * abs(step)
    equal = abs(with_state.gains[0] - step) < 0.05 * abs(step)
    restored = equal if told_apart else None
    findings.facts["optimizer_state_restored"] = restored
    value = f"next step {step:+.3f}; restored {with_state.gains[0]:+.3f}; without state {without.gains[0]:+.3f}"
    text = (f"yes: {value}", f"no: {value}")
    findings.judge(GROUP, "optimizer state restored", restored, text, "a resumed run starts with a cold optimizer")


async def _ttl(bench: Bench, client: tinker.TrainingClient, findings: Findings) -> None:
    """The last thing done with a client: a server that fails here blocks it."""
    try:
        path = await bench.saved(client, "ttl", TTL_SEC, TTL_LIMIT_SEC)
        listed = await bench.wait("checkpoints", bench.rest.list_checkpoints(client.model_id))
    except BackendError as error:
        findings.row(GROUP, "time-to-live", f"unclear: {error}", "unclear")
        return
    name = path.rsplit("/", 1)[-1]
    expiries = [c.expires_at for c in listed.checkpoints if c.checkpoint_id.rsplit("/", 1)[-1] == name]
    kept = None if not expiries else expiries[0] is not None
    findings.facts["ttl"] = kept
    findings.judge(GROUP, "time-to-live", kept, ("kept", "ignored"), "this trainer deletes its checkpoints itself")


async def _double_name(bench: Bench, client: tinker.TrainingClient, findings: Findings) -> None:
    """By raw requests: the SDK repeats a 409 or 5xx for minutes."""
    name = bench.name("state")
    status, _ = await bench.settle("save_weights", {"model_id": client.model_id, "path": name, "type": "save_weights"})
    if status == 200:
        findings.row(GROUP, "one name twice", "accepted: the first is replaced", "differs", "names here are unique")
    elif status in (408, 409, 429) or status >= 500:
        note = "the SDK asks again for minutes; names here are unique"
        findings.row(GROUP, "one name twice", f"refused with {status}", "differs", note)
    else:
        findings.row(GROUP, "one name twice", f"refused with {status}, at once", "same")


async def _used_model(bench: Bench, client: tinker.TrainingClient, path: str, findings: Findings) -> None:
    body = {"model_id": client.model_id, "path": path, "optimizer": True, "seq_id": 10**6, "type": "load_weights"}
    status, _ = await bench.settle("load_weights", body)
    works = status == 200
    note = "" if works else "resuming makes a new model here"
    findings.row(GROUP, "loading into a model in use", "works" if works else f"refused with {status}", "info", note)


async def _sent_twice(bench: Bench, client: tinker.TrainingClient, findings: Findings) -> None:
    """The same request again, as the SDK sends it when an answer is lost. The step has learning rate 0."""
    body = {
        "model_id": client.model_id,
        "adam_params": {"learning_rate": 0.0, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12},
        "seq_id": 10**6 + 1,
        "type": "optim_step",
    }
    first, second = [await bench.raw("optim_step", body) for _ in range(2)]
    promise = first[1].get("request_id")
    if first[0] != 200 or promise is None:
        findings.row(GROUP, "a request sent twice", f"not measured: answered {first[0]}", "not measured")
        return
    once = promise == second[1].get("request_id")
    findings.judge(GROUP, "a request sent twice", once, ("done once", "done twice"), "a lost answer doubles a step")
    await bench.raw("retrieve_future", {"request_id": promise})


async def _orphan(bench: Bench, sampler: tinker.SamplingClient, findings: Findings) -> None:
    try:
        await bench.wait("sampling", sampler.sample(PROMPT, 1, settings()), 30.0)
        works, why = True, ""
    except BackendError as error:
        works, why = False, str(error)
    except SDK_ERRORS as error:
        works, why = False, plain(error)
    text = ("still samples", "does not sample")
    findings.judge(GROUP, "sampler of an unloaded model", works, text, f"resume from a training state: {why}"[:110])
