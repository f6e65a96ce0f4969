"""Judges a batch's agents in containers: what no single trial shows."""

import logging
import re
from collections import Counter
from collections.abc import Sequence

from harbortrainer.errors import EnvironmentFault
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.policy.api.gate import judge

MOST_ALIKE = 0.2  # share of a batch whose agent may fail in the same way after one answer
FEWEST = 3  # such trials
_VARIES = re.compile(r"[0-9a-f]{6,}|\d+")  # times, ids and counts in what a program prints
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
        if number >= FEWEST and number > MOST_ALIKE * len(counted):
            raise EnvironmentFault(
                f"the agent itself fails: {number} of {len(counted)} trials ended after one answer with: {detail}"
            )
    judged = judge([one.stats for one in counted], sum(one.n_sampled_tokens for one in counted))
    if judged.stops:
        raise EnvironmentFault(judged.line)
    if judged.line:
        _log.warning("%s", judged.line)
