"""What the numbers of a metric count, for the axes."""

import re

_UNITS = (
    (r"learning_rate", "step size"),
    (r"loss", "loss"),
    (r"_fraction$|_rate$|^util/", "share"),
    (r"_per_second$", "1/s"),
    (r"^spend/usd", "USD"),
    (r"^spend/tokens", "tokens"),
    (r"^curriculum/tasks", "tasks"),
    (r"^curriculum/groups", "groups"),
    (r"_ms_per_turn$", "ms a turn"),
    (r"^time/|^trial_time/|_seconds$|_sec$|^spend/container_sec", "s"),
    (r"tokens_per_unique_token$|_ratio$", "ratio"),
    (r"_bytes$", "bytes"),
    (r"per_trajectory$", "datums a trial"),
    (r"^turn/per_trial$", "turns a trial"),
    (r"^turn/sampled_tokens$", "tokens a turn"),
    (r"^tokens/|/tokens$|_tokens$", "tokens"),
    (r"^reward/|^eval/reward", "reward"),
    (r"^kl/|^logprobs/|entropy", "nats a token"),
    (r"grad_norm", "norm"),
    (r"^optim/steps$", "optimizer steps"),
    (r"^train/datums$", "datums"),
    (r"^train/skipped_batch$", "1 = skipped"),
    (r"^eval/tasks$", "tasks"),
    (r"^group/trials|^outcome/|^funnel/|trials", "trials"),
    (r"^group/", "groups"),
    (r"^sampler/|retried$", "count"),
)


def unit(metric: str) -> str:
    """A word for the axis; "value" where nothing is known of the metric."""
    return next((word for pattern, word in _UNITS if re.search(pattern, metric)), "value")
