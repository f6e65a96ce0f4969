"""The state of a run at this moment: any thread updates it, the live view reads it."""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

from src.learning.trajectory import Trajectory
from src.rollout.states import TrialState

N_REWARDS = 60  # steps in the sparkline
N_STEPS = 10  # steps in the estimate of the remaining time


@dataclass
class Batch:
    """A training batch or an evaluation. `done`: trials with a grade; `failed`: slots without one."""

    training: bool
    total: int
    began: float
    done: int = 0
    failed: int = 0
    replaced: int = 0
    tokens: int = 0
    groups: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # rewards

    @property
    def with_signal(self) -> int:
        """Groups whose rewards differ."""
        return sum(min(rewards) < max(rewards) for rewards in self.groups.values())

    @property
    def reward(self) -> float | None:
        """Mean so far."""
        return fmean(chain(*self.groups.values())) if self.groups else None


class RunState:
    """Updating costs one dictionary write; totals are computed on read. Read it while you hold `lock`."""

    title = "harbortrainer"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock = threading.Lock()
        self.batch: Batch | None = None  # runs now, or ran last
        self.rewards: deque[float] = deque(maxlen=N_REWARDS)
        self.step_seconds: deque[float] = deque(maxlen=N_STEPS)
        self.step = self.total_steps = 0
        self.held_out: tuple[int, float, float] | None = None  # after which step, mean reward, standard error
        self.doing = "checking tasks, Docker and model"
        self._clock = clock
        self.began = self.since = clock()  # the run; what it is doing
        self._states: dict[str, TrialState] = {}
        self._step_began: float | None = None

    # -- updates from trials

    def moved(self, trial_name: str, state: TrialState | None) -> None:
        with self.lock:
            if state is None:
                self._states.pop(trial_name, None)
            else:
                self._states[trial_name] = state

    def sampled(self, tokens: int) -> None:
        with self.lock:
            if self.batch is not None:
                self.batch.tokens += tokens

    def replaced(self, trial_name: str) -> None:
        with self.lock:
            if self.batch is not None:
                self.batch.replaced += 1

    def finished(self, trajectory: Trajectory) -> None:
        """Count a filled slot, graded or given up; rewards only of the batch itself, not of an evaluation beside it."""
        with self.lock:
            batch, name = self.batch, trajectory.trial_name
            if batch is None:
                return
            if trajectory.reward is None:
                batch.failed += 1
                return
            batch.done += 1
            if name.startswith("s" if batch.training else "e"):
                batch.groups[name.rpartition("-g")[0]].append(trajectory.reward)

    kept = finished

    # -- updates from the run

    def plan(self, total_steps: int, rows: Iterable[Mapping[str, float]]) -> None:
        """Set the length of the run; `rows`: logged by an earlier process."""
        self.total_steps = total_steps
        for row in rows:
            self.logged(int(row["global_step"]), row)

    def logged(self, step: int, row: Mapping[str, float], total_steps: int = 0) -> None:
        """Note the metrics of a step, of an evaluation, or of both."""
        with self.lock:
            self.total_steps = total_steps or self.total_steps
            if "reward/mean" in row:
                self.step, self._step_began = step, None
                self.rewards.append(row["reward/mean"])
                self.step_seconds.append(row.get("time/step", 0.0))
            if "eval/reward_mean" in row:
                self.held_out = step, row["eval/reward_mean"], row.get("eval/reward_stderr", 0.0)
                if self.step_seconds:
                    self.step_seconds[-1] += row.get("time/evaluate", 0.0)

    def begin(self, training: bool, total: int, doing: str) -> None:
        """Start a batch, or an evaluation."""
        self.do(doing)
        with self.lock:
            self.batch = Batch(training, total, self._clock())
            if training and self._step_began is None:
                self._step_began = self._clock()

    def do(self, what: str) -> None:
        with self.lock:
            if what != self.doing:
                self.doing, self.since = what, self._clock()

    # -- totals

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def states(self) -> Counter[TrialState]:
        """How many trials are in each state."""
        return Counter(self._states.values())

    @property
    def remaining(self) -> float | None:
        """Estimate: each remaining step takes as long as the last ones did on average; None before the first."""
        if not self.step_seconds or not self.total_steps:
            return None
        a_step = fmean(self.step_seconds)
        under_way = self.now - self._step_began if self._step_began is not None else 0.0
        return max(0.0, (self.total_steps - self.step) * a_step - min(under_way, a_step))
