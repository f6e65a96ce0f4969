"""What a step cost: wall time of its parts, CPU, and how busy sampler and agents were."""

import contextlib
import resource
import time
from collections.abc import Callable, Iterator, Sequence

from src.learning.trajectory import TrajectoryGroup
from src.tinker_llm import PolicySampler


class StepUsage:
    """Counts from the start of a step; `metrics` holds what was measured so far."""

    def __init__(self, sampler: PolicySampler, docker_cpu: Callable[[], float]) -> None:
        self.metrics: dict[str, float] = {}
        self._sampler = sampler
        self._docker_cpu = docker_cpu
        self._docker_cpu_before = docker_cpu()
        self._wall = time.monotonic()
        self._own_cpu = time.process_time()
        self._children_cpu = _children_cpu()
        self._busy = sampler.busy_seconds
        self._in_flight = sampler.in_flight_seconds
        self._counters = sampler.counters

    def sampled(self, groups_P: Sequence[TrajectoryGroup]) -> None:
        """Read the clocks when the step's last trial has ended."""
        wall = max(time.monotonic() - self._wall, 1e-9)
        docker = self._docker_cpu() - self._docker_cpu_before
        trials = [trial for group in groups_P for trial in (*group.trajectories_G, *group.lost)]
        turns = max(sum(len(trial.turns) for trial in trials), 1)
        counted = self._sampler.counters
        self.metrics |= {f"sampler/{name}": counted[name] - self._counters[name] for name in counted} | {
            "time/sample": wall,
            "util/sampler_busy": (self._sampler.busy_seconds - self._busy) / wall,
            "util/requests_in_flight": (self._sampler.in_flight_seconds - self._in_flight) / wall,
            "util/agents_at_work": sum(trial.times.get("agent", 0.0) for trial in trials) / wall,
            "orchestrator/cpu_ms_per_turn": 1000 * (time.process_time() - self._own_cpu - docker) / turns,
            "orchestrator/docker_client_cpu_ms_per_turn": 1000 * docker / turns,
            "orchestrator/children_cpu_ms_per_turn": 1000 * (_children_cpu() - self._children_cpu) / turns,
            "rollout/trials_per_second": len(trials) / wall,
        }

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Measure the block as `time/PART`."""
        started = time.monotonic()
        yield
        self.metrics[f"time/{part}"] = time.monotonic() - started

    def ended(self) -> dict[str, float]:
        """All that was measured, with the whole step's time."""
        return self.metrics | {"time/step": time.monotonic() - self._wall}


def _children_cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime
