"""pass@k: the chance that at least one of k trials of a task succeeds."""

import math
from collections.abc import Sequence

TOLERANCE = 1e-9  # rewards that are sums of fractions


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased: 1 - C(n - c, k) / C(n, k) from c successes in n trials (Chen et al. 2021, arXiv:2107.03374).

    With whole numbers, so it is exact to the last digit. Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {c} successes in {n} trials")
    every = math.comb(n, k)
    return (every - math.comb(n - c, k)) / every


def task_pass_at_k(rewards_G: Sequence[float], k: int, pass_reward: float = 1.0) -> float | None:
    """pass@k of one task; a trial succeeds with a reward of at least `pass_reward`. None with fewer than k trials."""
    return None if len(rewards_G) < k else pass_at_k(len(rewards_G), successes(rewards_G, pass_reward), k)


def successes(rewards_G: Sequence[float], pass_reward: float = 1.0) -> int:
    """Trials with a reward of at least `pass_reward`."""
    return sum(reward >= pass_reward - TOLERANCE for reward in rewards_G)
