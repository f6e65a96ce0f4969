"""Lines on runs that do not learn: drift that buys no held-out reward; batches without any reward. Pure."""

from collections.abc import Mapping, Sequence

DRIFT_NATS = 0.2  # growth of kl/start, in nats a token, that should raise the held-out reward
KL, REWARD, STDERR = "kl/start", "eval/reward_mean", "eval/reward_stderr"


def drift_warning(rows: Sequence[Mapping[str, float]]) -> str | None:
    """A line when the last row is an evaluation that is no better than the best before it, and the policy went further.

    Further: `kl/start` grew by more than DRIFT_NATS since. No better: the reward did not rise by more than the last
    evaluation's standard error. `rows`: of metrics.jsonl, in order; a row without `kl/start` has that of the row
    before, and the policy before the first step is its start (0).
    """
    evaluated: list[tuple[float, float, float, float]] = []  # step, reward, standard error, kl
    kl = 0.0
    for row in rows:
        kl = row.get(KL, kl)
        if REWARD in row:
            evaluated.append((row["global_step"], row[REWARD], row.get(STDERR, 0.0), kl))
    if len(evaluated) < 2 or REWARD not in rows[-1]:
        return None
    *earlier, (_, reward, stderr, drift) = evaluated
    step, best, _, before = max(earlier, key=lambda one: one[1])
    if drift - before <= DRIFT_NATS or reward - best > stderr:
        return None
    return (
        f"WARNING: the policy drifts without learning: since the evaluation after step {step:.0f} kl/start grew from "
        f"{before:.2f} to {drift:.2f} nats a token and held-out reward went from {best:.3f} to {reward:.3f} "
        f"(± {stderr:.3f}); set kl_penalty_coef with kl_reference=start, or lower learning_rate"
    )


SILENT_BATCHES = 3


def no_signal(rows: Sequence[Mapping[str, float]]) -> str | None:
    """A line when all trials of the last SILENT_BATCHES batches earned nothing, and one of the batch before did.

    `rows`: of the last steps, in order.
    """
    batches = [row["reward/best_of_group"] == 0 for row in rows if row.get("reward/best_of_group") is not None]
    before, last = batches[-SILENT_BATCHES - 1 : -SILENT_BATCHES], batches[-SILENT_BATCHES:]
    if len(last) < SILENT_BATCHES or not all(last) or any(before):
        return None
    return (
        f"WARNING: no trial of {SILENT_BATCHES} batches earned a reward, so nothing is learned: take tasks that the "
        "policy sometimes solves (tasks_include, or python -m src.evaluate to find them), start from weights that "
        "have seen solutions (python -m src.sft, then init_from), or raise group_size"
    )
