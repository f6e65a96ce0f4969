"""Where a step's time and CPU went: ratios that show what the orchestrator costs."""

import resource
import time
from collections.abc import Callable, Sequence

from src.learning.trajectory import TrajectoryGroup
from src.tinker_llm import PolicySampler


class Usage:
    """Started with a step; `sampled` reads the clocks when its last trial has ended."""

    def __init__(self, sampler: PolicySampler, docker_cpu: Callable[[], float]) -> None:
        self._sampler = sampler
        self._docker_cpu = docker_cpu
        self._docker_cpu_before = docker_cpu()
        self._wall = time.monotonic()
        self._own_cpu = time.process_time()
        self._children_cpu = _children_cpu()
        self._busy = sampler.busy_seconds
        self._in_flight = sampler.in_flight_seconds
        self._counters = sampler.counters

    def sampled(self, groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Wall time, mean numbers of sampling requests and agents, CPU a turn, what the sampler counted."""
        wall = time.monotonic() - self._wall
        docker = self._docker_cpu() - self._docker_cpu_before
        trials = [trial for group in groups_P for trial in (*group.trajectories_G, *group.lost)]
        turns = sum(len(trial.turns) for trial in trials)
        counted = self._sampler.counters
        return {f"sampler/{name}": counted[name] - self._counters[name] for name in counted} | {
            "time/sample": wall,
            "util/sampler_busy": (self._sampler.busy_seconds - self._busy) / max(wall, 1e-9),
            "util/requests_in_flight": (self._sampler.in_flight_seconds - self._in_flight) / max(wall, 1e-9),
            "util/agents_at_work": sum(trial.times.get("agent", 0.0) for trial in trials) / max(wall, 1e-9),
            "orchestrator/cpu_ms_per_turn": 1000 * (time.process_time() - self._own_cpu - docker) / max(turns, 1),
            "orchestrator/docker_client_cpu_ms_per_turn": 1000 * docker / max(turns, 1),
            "orchestrator/children_cpu_ms_per_turn": 1000 * (_children_cpu() - self._children_cpu) / max(turns, 1),
            "rollout/trials_per_second": len(trials) / max(wall, 1e-9),
        }

    def seconds(self) -> float:
        return time.monotonic() - self._wall


def _children_cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime
