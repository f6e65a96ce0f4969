"""Judges a batch's agents in containers: what no single trial shows.

Whether an agent fails by itself, and whether its histories were recognised: a wire that breaks them trains on prompts
said twice.
"""

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harbortrainer.errors import EnvironmentFault
from harbortrainer.learning.trajectory import Outcome, Trajectory

MOST_ALIKE = 0.2  # share of a batch whose agent may fail in the same way after one answer
FEWEST_ALIKE = 3  # such trials
_VARIES = re.compile(r"[0-9a-f]{6,}|\d+")  # times, ids and counts in what a program prints
WARN_FOREIGN, STOP_FOREIGN = 0.01, 0.2  # share of the turns with a history
WARN_TOKENS = 1.3  # a unique token
WARN_SIDE = 0.5  # share of sampled tokens
FEWEST = 20  # turns with a history, before a run is stopped
_log = logging.getLogger("harbortrainer")


def check_agents(trajectories: Sequence[Trajectory]) -> None:
    """Log a warning, or raise EnvironmentFault, when it is the agent that fails or rewrites what it was answered."""
    counted = [one for one in trajectories if "wire_turns" in one.stats]
    if not counted:
        return
    alike = Counter(
        _VARIES.sub("#", one.detail)
        for one in counted
        if one.outcome is Outcome.POLICY_ERROR and len(one.own_turns) == 1
    )
    for detail, number in alike.most_common(1):
        if number >= FEWEST_ALIKE and number > MOST_ALIKE * len(counted):
            raise EnvironmentFault(
                f"the agent itself fails: {number} of {len(counted)} trials ended after one answer with: {detail}"
            )
    judged = judge([one.stats for one in counted], sum(one.n_sampled_tokens for one in counted))
    if judged.stops:
        raise EnvironmentFault(judged.line)
    if judged.line:
        _log.warning("%s", judged.line)


@dataclass(frozen=True, slots=True)
class Judged:
    """A judgement. `line`: a warning, "" = none; `stops`: whether the run must stop with it."""

    foreign_rate: float  # histories with unknown answers, of those with any
    tokens_per_unique_token: float
    side_token_share: float  # of sampled tokens, without loss
    line: str = ""
    stops: bool = False


def judge(stats: Sequence[Mapping[str, float]], sampled_tokens: int) -> Judged:
    """`stats`: of the batch's trials (`Exchange.stats`); `sampled_tokens`: of all of them."""

    def total(name: str) -> float:
        return sum(one.get(name, 0.0) for one in stats)

    foreign, tokens = total("wire_foreign"), total("wire_tokens")
    histories = foreign + total("wire_matched")
    rate = foreign / histories if histories else 0.0
    ratio = tokens / (tokens - total("wire_repeated_tokens")) if tokens else 1.0
    share = total("wire_side_tokens") / sampled_tokens if sampled_tokens else 0.0
    stops = rate > STOP_FOREIGN and histories >= FEWEST
    found = []
    if rate > WARN_FOREIGN:
        found.append(
            f"{foreign:.0f} of {histories:.0f} histories that the agent sent hold answers that this run did not give "
            "it in that form: the agent changes what it sends again, and these prompts are trained twice"
        )
    if ratio > WARN_TOKENS:
        found.append(f"{ratio:.2f} tokens are trained for each unique token: the agent often drops answers")
    if share > WARN_SIDE:
        found.append(f"{share:.0%} of the sampled tokens are beside the agent's own turns and get no loss")
    return Judged(rate, ratio, share, "; ".join(found), stops)
