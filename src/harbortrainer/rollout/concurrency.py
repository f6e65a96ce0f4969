"""Measures a run's rollouts and moves the limits of `n_parallel_envs=auto` accordingly.

A window is eight slices; a slice is time in which each agent that may run takes two turns on average. A slice counts
only while nearly all places are taken, without a failed request and without an outage: the tail of a batch, an update,
an evaluation of a few trials, and the first slice after a change count nothing. The two slowest slices of a window are
left out, so a pause in which the server compiles does not show.
"""

import logging
import time
from collections.abc import Callable
from operator import sub
from pathlib import Path
from typing import NamedTuple

from harbortrainer.config import AUTO, Config
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.gates import UNOBSERVED, Gates, TrialObserver
from harbortrainer.rollout.level import Level, Window

TURNS_PER_AGENT = 2  # in a slice
LEAST_TURNS = 16  # in a slice
SLICES = 8  # in a window
SLOWEST = 2  # slices of a window that are left out
TAKEN = 0.9  # of the places, on average over a slice
MOST_UNUSED = 3 * SLICES  # slices with free places, after which a try of more is taken back
LIMIT = "rollout/parallel_limit"
log = logging.getLogger("harbortrainer")


def level_of(config: Config, most: int, metrics: Path | None = None) -> Level | None:
    """Return the level of a run, None for a number. `most`: agents at once; `metrics`: of its earlier processes."""
    if config.n_parallel_envs != AUTO:
        return None
    rows = read_lines(metrics) if metrics is not None else []
    earlier = next((int(row[LIMIT]) for row in reversed(rows) if LIMIT in row), None)
    return Level(most, earlier)


class _Sums(NamedTuple):
    """Of the run so far, or of a slice. `faults`: failed requests and outages; the others are seconds or counts.

    `containers`, `agents`: for which each of these places was held, added up.
    """

    time: float
    turns: float
    tokens: float
    sampling: float
    faults: float
    containers: float
    agents: float


class ParallelLimit:
    """Resizes the gates as `level` says; without a level they stay as they are."""

    def __init__(
        self,
        config: Config,
        gates: Gates,
        level: Level | None,
        sampler: PolicySampler,
        outages: Callable[[], int],
        observer: TrialObserver = UNOBSERVED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`outages`: how many of the venues have begun."""
        self._config, self._gates, self._level, self._sampler = config, gates, level, sampler
        self._outages, self._observer, self._clock = outages, observer, clock
        self._changes = 0
        self._window: Window | None = None
        self._slices: list[_Sums] = []
        self._unused = 0
        self._settling = True
        self._halvings = gates.starting.halvings
        if level is not None:
            self._places = gates.containers, gates.running  # a venue may need no container
            self._from = self._read()
            for places in self._places:
                places.released = self.noted
            observer.limited(level.limit, level.why.words)

    @property
    def metrics(self) -> dict[str, float]:
        """The limit and its course; none where it is a number."""
        if self._level is None:
            return {}
        return {
            "rollout/parallel_tokens_per_second": self._window.rate if self._window else 0.0,
            LIMIT: float(self._level.limit),
            "rollout/parallel_most": float(self._level.most),
            "rollout/parallel_changes": float(self._changes),
            "rollout/parallel_why": float(self._level.why),
        }

    def noted(self) -> None:
        """Call it whenever a trial has ended."""
        if (level := self._level) is None:
            return
        now = self._read()
        grown = _Sums._make(map(sub, now, self._from))
        if grown.turns < max(LEAST_TURNS, TURNS_PER_AGENT * level.limit):
            return
        self._from = now
        if self._gates.starting.halvings > self._halvings:
            self._moved(level.slow_starts())
        elif self._settling:
            self._settling = any(places.taken > places.limit for places in self._places)
        else:
            self._slice(level, grown)

    def _slice(self, level: Level, grown: _Sums) -> None:
        if grown.faults > 0 or grown.time <= 0:
            return
        held = zip(self._places, (grown.containers, grown.agents), strict=True)
        if max(seconds / places.limit for places, seconds in held) < TAKEN * grown.time:
            self._unused += 1
            if self._unused >= MOST_UNUSED:
                self._unused = 0
                self._moved(level.unused())
            return
        self._slices.append(grown)
        if len(self._slices) == SLICES:
            self._window, self._slices, self._unused = _window(self._slices), [], 0
            self._moved(level.judge(self._window))

    def _moved(self, changed: bool) -> None:
        """Apply the level's limit, if it has `changed`."""
        self._halvings = self._gates.starting.halvings
        if not changed or self._level is None:
            return
        self._changes += 1
        self._slices, self._unused, self._settling = [], 0, True
        limit, why = self._level.limit, self._level.why.words
        self._gates.resize(self._config, limit)
        self._observer.limited(limit, why)
        measured = f" ({self._window.rate:.0f} tokens a second in the last window)" if self._window else ""
        log.info("n_parallel_envs=auto: %d at once: %s%s", limit, why, measured)

    def _read(self) -> _Sums:
        counted = self._sampler.counters
        sampled = (counted[name] for name in ("requests", "sampled_tokens", "request_seconds"))
        faults = counted["faults"] + counted["retries"] + self._outages()
        held = (places.held_seconds for places in self._places)
        return _Sums._make([self._clock(), *sampled, faults, *held])


def _window(slices: list[_Sums]) -> Window:
    kept = sorted(slices, key=lambda one: one.time / max(one.turns, 1))[: len(slices) - SLOWEST]
    seconds, tokens = sum(one.time for one in kept), sum(one.tokens for one in kept)
    return Window(tokens / seconds, sum(one.sampling for one in kept) / max(tokens, 1))
