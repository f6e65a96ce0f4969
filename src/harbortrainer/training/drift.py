"""Lines on runs that do not learn: drift, by batches; batches without any reward. Pure."""

from collections.abc import Mapping, Sequence

from harbortrainer.commands import command

KL = "kl/start"
SILENT_BATCHES = 3


def no_signal(rows: Sequence[Mapping[str, float]]) -> str | None:
    """Return a line when all trials of the last SILENT_BATCHES batches earned nothing, and one of the batch before did.

    `rows`: of the last steps, in order.
    """
    batches = [row["reward/best_of_group"] == 0 for row in rows if row.get("reward/best_of_group") is not None]
    before, last = batches[-SILENT_BATCHES - 1 : -SILENT_BATCHES], batches[-SILENT_BATCHES:]
    if len(last) < SILENT_BATCHES or not all(last) or any(before):
        return None
    return (
        f"WARNING: no trial of {SILENT_BATCHES} batches earned a reward, so nothing is learned: take tasks that the "
        f"policy sometimes solves (tasks_include, or {command('evaluate')} to find them), start from weights that "
        f"have seen solutions ({command('sft')}, then init_from), or raise group_size"
    )


GROWN = {"turn/parse_failure_rate": 0.1, "outcome/max_turns": 0.3}  # shares of a batch, beyond the least so far
FAR_NATS = 1.0  # kl/start of a policy that is no longer its start's
SAID = {
    "turn/parse_failure_rate": "answers that cannot be read",
    "outcome/max_turns": "trials that end at max_turns",
    KL: "nats a token from the start (kl/start)",
}

JUDGED = (*SAID, "rollout/trials", "reward/mean", "reward/best_of_group")  # of a step's row


def worsening(rows: Sequence[Mapping[str, float]]) -> str | None:
    """Warn when the last two batches show a policy that falls apart, and the two before did not, whatever its reward.

    Each of them has GROWN more answers that cannot be read, or trials that end at the turn limit, than the best batch
    before them; or is FAR_NATS from the start. `rows`: of all steps, in order; one without any answer is no batch.
    """
    batches = [shares for row in rows if (shares := _shares(row))]
    signs = _signs(batches)
    if not signs or signs.keys() <= _signs(batches[:-1]).keys():
        return None
    told = "; ".join(f"{SAID[name]}: {before:.2f} at best, {now:.2f} now" for name, (before, now) in signs.items())
    reward = rows[-1].get("reward/mean")
    beside = "" if reward is None else f" (reward {reward:.2f})"
    return (
        f"WARNING: the policy drifts{beside}: {told}; the verifier does not see it: lower learning_rate, set "
        "kl_penalty_coef with kl_reference=start, or outcome_policy.max_turns=0"
    )


def _shares(row: Mapping[str, float]) -> dict[str, float]:
    trials = row.get("rollout/trials") or 1.0
    found = {name: row[name] / (trials if name.startswith("outcome/") else 1.0) for name in SAID if name in row}
    return found if "turn/parse_failure_rate" in row else {}


def _signs(batches: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """(the best before, the last) of what is worse in both of the last two batches."""
    found: dict[str, tuple[float, float]] = {}
    for name in SAID:
        values = [one[name] for one in batches if name in one]
        if len(values) < 2 or (name in GROWN and len(values) < 3):
            continue
        best = 0.0 if name == KL else min(values[:-2])
        if min(values[-2:]) >= best + GROWN.get(name, FAR_NATS):
            found[name] = best, values[-1]
    return found
