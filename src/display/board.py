"""What is known of a run right now: told by any thread, read by the panel."""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from src.display.snapshot import Event, Snapshot, Trials
from src.learning.trajectory import Trajectory
from src.rollout.states import TrialState

N_REWARDS = 60  # steps of the sparkline
N_STEPS = 10  # that the estimate of the time to come is made from
N_EVENTS = 5
RATE_SEC = 60.0  # over which tokens a second are counted


@dataclass
class _Batch:
    """Trials that run now, or ran last."""

    label: str
    total: int
    began: float
    done: int = 0
    failed: int = 0
    replaced: int = 0
    tokens: int = 0
    rewards: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # by group


class Board:
    """A trial's way costs a dictionary entry; everything else is counted when somebody looks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.version = 0  # grows with everything that is noted
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._states: dict[str, TrialState] = {}
        self._batch: _Batch | None = None
        self._tokens: deque[list[float]] = deque()  # [second, tokens sampled in it]
        self._rewards: deque[float] = deque(maxlen=N_REWARDS)
        self._step_seconds: deque[float] = deque(maxlen=N_STEPS)
        self._eval_seconds: list[float] = []  # a step, of those with an evaluation in this process
        self._steps = 0  # of this process
        self._step = self._total_steps = 0
        self._step_began: float | None = None
        self._held_out: tuple[int, float, float] | None = None
        self._events: deque[Event] = deque(maxlen=N_EVENTS)
        self._doing, self._since = "checking tasks, Docker and model", self._began

    # -- told by trials

    def moved(self, trial_name: str, state: TrialState | None) -> None:
        with self._lock:
            self.version += 1
            if state is None:
                self._states.pop(trial_name, None)
            else:
                self._states[trial_name] = state

    def sampled(self, tokens: int) -> None:
        second = float(int(self._clock()))
        with self._lock:
            self.version += 1
            if self._batch is not None:
                self._batch.tokens += tokens
            if self._tokens and self._tokens[-1][0] == second:
                self._tokens[-1][1] += tokens
            else:
                self._tokens.append([second, tokens])
                while self._tokens[0][0] < second - RATE_SEC:
                    self._tokens.popleft()

    def replaced(self, trial_name: str) -> None:
        with self._lock:
            self.version += 1
            if self._batch is not None:
                self._batch.replaced += 1

    def kept(self, trajectory: Trajectory) -> None:
        self.finished(trajectory)

    def finished(self, trajectory: Trajectory) -> None:
        """A place in a group is filled, or given up."""
        with self._lock:
            self.version += 1
            if self._batch is None:
                return
            self._batch.done += 1
            self._batch.failed += trajectory.reward is None
            own = trajectory.trial_name.startswith(self._batch.label[0])  # not of an evaluation beside the batch
            if trajectory.reward is not None and own:
                self._batch.rewards[trajectory.trial_name.rpartition("-g")[0]].append(trajectory.reward)

    # -- told by the run

    def plan(self, total_steps: int, rows: Iterable[Mapping[str, float]]) -> None:
        """How long the run is; `rows`: what an earlier process logged."""
        with self._lock:
            self.version += 1
            self._total_steps = total_steps
            for row in rows:
                self._step = int(row["global_step"])
                if "reward/mean" in row:
                    self._rewards.append(row["reward/mean"])
                    self._step_seconds.append(row.get("time/step", 0.0) + row.get("time/evaluate", 0.0))
                self._note_held_out(self._step, row)

    def begin(self, label: str, total: int, doing: str) -> None:
        """Trials begin, of a batch or of an evaluation."""
        with self._lock:
            self.version += 1
            self._batch = _Batch(label, total, self._clock())
            self._do(doing)
            if label == "step" and self._step_began is None:
                self._step_began = self._clock()

    def doing(self, what: str) -> None:
        with self._lock:
            self.version += 1
            self._do(what)

    def stepped(self, step: int, total: int, row: Mapping[str, float]) -> None:
        with self._lock:
            self.version += 1
            self._step, self._total_steps = step, total
            self._rewards.append(row["reward/mean"])
            self._step_seconds.append(row["time/step"])
            self._step_began = None
            self._steps += 1
            self._do("saving")

    def evaluated(self, step: int, row: Mapping[str, float]) -> None:
        with self._lock:
            self.version += 1
            self._note_held_out(step, row)
            if step and "time/evaluate" in row:
                self._eval_seconds.append(row["time/evaluate"])
            self._do("saving")

    def event(self, text: str) -> None:
        with self._lock:
            self.version += 1
            self._events.append(Event(self._clock() - self._began, text))

    # -- looked at

    def look(self) -> Snapshot:
        with self._lock:
            now = self._clock()
            return Snapshot(
                version=self.version,
                elapsed=now - self._began,
                to_come=self._to_come(now),
                estimated_from=len(self._step_seconds),
                step=self._step,
                total_steps=self._total_steps,
                doing=self._doing,
                doing_for=now - self._since,
                rewards=tuple(self._rewards),
                held_out=self._held_out,
                trials=self._trials(),
                tokens_per_second=self._rate(now),
                events=tuple(self._events),
            )

    def _trials(self) -> Trials | None:
        batch = self._batch
        if batch is None:
            return None
        rewards = batch.rewards.values()
        return Trials(
            training=batch.label == "step",
            total=batch.total,
            done=batch.done - batch.failed,
            failed=batch.failed,
            replaced=batch.replaced,
            queued=max(0, batch.total - batch.done - len(self._states)),
            states=Counter(self._states.values()),
            groups=len(rewards),
            with_signal=sum(min(group) < max(group) for group in rewards),
            reward=sum(map(sum, rewards)) / n if (n := sum(map(len, rewards))) else None,
            tokens=batch.tokens,
        )

    def _rate(self, now: float) -> float:
        recent = [(second, tokens) for second, tokens in self._tokens if second > now - RATE_SEC]
        return sum(tokens for _, tokens in recent) / max(1.0, now - recent[0][0]) if recent else 0.0

    def _to_come(self, now: float) -> float | None:
        """Seconds: the steps that are left, each as long as the last ones; None before the first."""
        if not self._step_seconds or not self._total_steps:
            return None
        a_step = sum(self._step_seconds) / len(self._step_seconds) + sum(self._eval_seconds) / max(1, self._steps)
        under_way = now - self._step_began if self._step_began is not None else 0.0
        return max(0.0, (self._total_steps - self._step) * a_step - min(under_way, a_step))

    def _note_held_out(self, step: int, row: Mapping[str, float]) -> None:
        if "eval/reward_mean" in row:
            self._held_out = step, row["eval/reward_mean"], row.get("eval/reward_stderr", 0.0)

    def _do(self, what: str) -> None:
        if what != self._doing:
            self._doing, self._since = what, self._clock()
