"""Signs that a reward may not come from the work: rules on one trial, and on a task's trials of one step. Pure, no I/O.

A mark is a reason in words. It is no proof: `outcome_policy.suspect` decides what training does with marked trials.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import comb, exp, floor
from statistics import median

import numpy as np

from harbortrainer.learning.trajectory import Trajectory, TrajectoryGroup, TrialName

VERIFICATION = "verification_seconds"  # in a trajectory's `stats`: of the verifier, without waiting for a slot
SHOWN_TRIALS = 3

# A quick verification
LEAST_TIMES, NEWEST_TIMES = 8, 64  # rewarded trials of the task
QUICK_SHARE, QUICK_MADS, QUICK_SEC = 0.2, 6.0, 0.5
MAD_TO_SIGMA = 1.4826  # of a normal distribution
NEW_NORMAL = 32  # quick verifications in a row after which they are the task's usual time

# A jump of a task's reward
LEAST_TRIALS, LEAST_STEPS = 24, 2  # graded trials of the task and steps that had them
WINDOW = 32  # trials of the shortest past that a rise is compared with
LEARNING = 1.0  # in log-odds: what a task may gain between two of its batches, the odds multiplied by e
FALSE_ALARM = 1e-3
LEAST_RISE = 0.25
_GRID = np.linspace(0.0005, 0.9995, 1000)  # success rates


@dataclass(slots=True)
class Verifications:
    """Seconds of one task's verifications that gave a reward. `usual`: the newest NEWEST_TIMES that were not quick."""

    usual: tuple[float, ...] = ()  # replaced whole: other threads read it
    quick: tuple[float, ...] = ()  # since the last usual one

    def why_quick(self, seconds: float) -> str:
        """The reason, "" = usual: below QUICK_SHARE of the median, QUICK_MADS deviations below it, and QUICK_SEC.

        With fewer than LEAST_TIMES past ones everything is usual. The deviation is the median absolute one as an
        estimate of sigma: times that scatter with the machine's load flag nothing.
        """
        past = self.usual
        if len(past) < LEAST_TIMES or seconds >= QUICK_SHARE * max(past):  # the latter is quick to see
            return ""
        middle = median(past)
        deviation = MAD_TO_SIGMA * median(abs(value - middle) for value in past)
        if seconds >= min(QUICK_SHARE * middle, middle - QUICK_MADS * deviation, middle - QUICK_SEC):
            return ""
        return f"verified in {seconds:.2f} s, usually {middle:.2f} s"

    def add(self, seconds: float) -> None:
        """After NEW_NORMAL quick ones in a row, as on a faster machine, these are the usual ones."""
        if not self.why_quick(seconds):
            self.usual, self.quick = (*self.usual, seconds)[-NEWEST_TIMES:], ()
        elif len(self.quick) + 1 < NEW_NORMAL:
            self.quick = (*self.quick, seconds)
        else:
            self.usual, self.quick = (*self.quick, seconds), ()


@dataclass(slots=True)
class Past:
    """The earlier graded trials of a run by task: rewards of training steps, and times of verifications."""

    rewards: defaultdict[str, defaultdict[int, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    verifications: defaultdict[str, Verifications] = field(default_factory=lambda: defaultdict(Verifications))

    def add(self, trial_name: str, task_name: str, reward: float, seconds: float | None) -> None:
        """Count a graded trial. `seconds`: of its verification, None = not known."""
        name = TrialName.parse(trial_name)
        if name.kind == "step":
            self.rewards[task_name][name.step].append(reward)
        if seconds is not None and reward > 0:
            self.verifications[task_name].add(seconds)

    def of_trial(self, trajectory: Trajectory) -> str:
        """Why its verification was quick; "" = it was not, or nothing was earned."""
        seconds = trajectory.stats.get(VERIFICATION)
        known = self.verifications.get(trajectory.task_name)
        if known is None or seconds is None or not trajectory.reward or trajectory.reward < 0:
            return ""
        return known.why_quick(seconds)

    def of_step(self, groups_P: Sequence[TrajectoryGroup]) -> dict[str, str]:
        """Trial name -> reason: the rewarded trials of tasks whose reward jumped from that of earlier batches."""
        now: defaultdict[str, list[Trajectory]] = defaultdict(list)
        for group in groups_P:
            now[group.task_name] += group.trajectories_G
        marks: dict[str, str] = {}
        for task, trials in now.items():
            before = self.rewards.get(task, {})
            first = min((TrialName.parse(trial.trial_name).step for trial in trials), default=0)
            past = [rewards for number, rewards in sorted(before.items()) if number < first]
            if reason := jump(past, [trial.reward or 0.0 for trial in trials]):
                marks |= {trial.trial_name: reason for trial in trials if trial.reward and trial.reward > 0}
        return marks


def jump(past: Sequence[Sequence[float]], now: Sequence[float]) -> str:
    """Why the rewards of a task in one step are a jump; "" = chance and learning explain them.

    `past`: its rewards of each earlier step, in order. The rise of the mean is at least LEAST_RISE (of the largest
    reward, or 1), and no stretch of the past explains it: neither all of it nor any newest part with at least WINDOW
    trials. A stretch with k of n rewards explains a rise unless P(at least as many rewards as now) < FALSE_ALARM, with
    the success rate drawn from Beta(1 + k, 1 + n - k) and its odds multiplied by e (LEARNING).

    False alarms by simulation (0/1 rewards, groups of 4 to 16, 40 batches of a task): none in 10,000 groups where the
    policy does not change, fewer than 1 in 1,000 where a task's odds grow up to e-fold from each of its batches to
    the next, 5 in 1,000 where they grow by e^2. Found: groups of 8 that all earn after 48 trials, always where none
    earned before, 3 of 4 where one in ten did. Rewards between 0 and 1 vary less than 0/1 rewards of the same mean.
    """
    earlier = [reward for rewards in past for reward in rewards]
    if not now or len(earlier) < LEAST_TRIALS or len(past) < LEAST_STEPS:
        return ""
    largest = max(1.0, *earlier, *now)
    shares = [[min(max(reward / largest, 0.0), 1.0) for reward in rewards] for rewards in past]
    earned = sum(min(max(reward / largest, 0.0), 1.0) for reward in now)
    before = sum(map(sum, shares)) / len(earlier)
    if earned / len(now) - before < LEAST_RISE:
        return ""
    k, n = 0.0, 0
    for index, rewards in enumerate(reversed(shares), 1):
        k, n = k + sum(rewards), n + len(rewards)
        if (n >= WINDOW or index == len(shares)) and _chance(k, n, floor(earned + 1e-9), len(now)) >= FALSE_ALARM:
            return ""
    means = f"{sum(earlier) / len(earlier):.2f} to {sum(now) / len(now):.2f}"
    return f"mean reward of the task jumped from {means}"


@lru_cache(maxsize=4096)
def _chance(k: float, n: int, least: int, size: int) -> float:
    """P(at least `least` of `size` trials earn) after k of n did and the odds grew."""
    weights = np.exp(k * np.log(_GRID) + (n - k) * np.log1p(-_GRID))
    odds = exp(LEARNING) * _GRID / (1 - _GRID)
    rate = odds / (1 + odds)
    tail = sum(comb(size, i) * rate**i * (1 - rate) ** (size - i) for i in range(least, size + 1))
    return float((weights * tail).sum() / weights.sum())


def marked(groups_P: Sequence[TrajectoryGroup], marks: Mapping[str, Sequence[str]]) -> list[TrajectoryGroup]:
    """The groups with the reasons of `marks` added, by trial name."""

    def one(trajectory: Trajectory) -> Trajectory:
        new = [reason for reason in marks.get(trajectory.trial_name, ()) if reason not in trajectory.suspect]
        return replace(trajectory, suspect=(*trajectory.suspect, *new)) if new else trajectory

    return [replace(group, trajectories_G=tuple(map(one, group.trajectories_G))) for group in groups_P]


def suspects(groups_P: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    return [trial for group in groups_P for trial in group.trajectories_G if trial.suspect]


def described(groups_P: Sequence[TrajectoryGroup]) -> str:
    """Number, and the first suspect trials with their reasons, in one line; "" = there is none."""
    found = suspects(groups_P)
    shown = [f"{one.trial_name} of {one.task_name}: {'; '.join(one.suspect)}" for one in found[:SHOWN_TRIALS]]
    more = f" and {len(found) - SHOWN_TRIALS} more" if len(found) > SHOWN_TRIALS else ""
    return f"suspect trials: {len(found)} ({', '.join(shown)}{more})" if found else ""
