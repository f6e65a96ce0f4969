"""What the work that is left will take: ranges from earlier runs, else bounds from the limits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from src.budget.past import PastRun, Unit
from src.budget.prices import Tariff
from src.budget.ranges import Range, predict, predict_time
from src.budget.scope import Scope
from src.budget.use import Use
from src.config import Config

KINDS = ("prompt", "sampled", "trained", "container_sec")
TOKEN_SPREAD, TIME_SPREAD = 0.15, 0.25  # between batches of one run, assumed where there are too few to tell
FEW_RUNS = 3
LEAST_TOKENS, LEAST_TIME = 0.1, 0.15  # half of the narrowest range, as a share of its middle
FEW_FACTOR = 1.5  # runs differ among themselves: with fewer than FEW_RUNS both are as much wider
BUSY_SPREAD = 0.5  # of time, on a machine with more to do than processors
LEAST_START, MOST_START, END_SEC = 0.7, 2.0, 5.0  # of the start to be; connecting and the report come on top
NEAR = 3  # batches of the same steps that are preferred to those of others


@dataclass(frozen=True, slots=True)
class Forecast:
    """`cached`: share of prompt tokens that were said before in their trial, at most in a prefix cache."""

    trials: Range
    prompt: Range
    sampled: Range
    trained: Range
    container_sec: Range
    wall_sec: Range
    cached: float
    source: str
    assumptions: tuple[str, ...] = ()

    @property
    def tokens(self) -> Range:
        return self.prompt + self.sampled + self.trained

    def usd(self, tariff: Tariff) -> Range | None:
        """Low: every repeated prompt cached; high: none. None without a price."""
        if not tariff.known:
            return None
        cost = Range(0.0, 0.0)
        if tariff.price is not None:
            low = Use(self.prompt.low, self.sampled.low, self.trained.low)
            high = [self.prompt.high, self.sampled.high, self.trained.high]
            most = None if None in high else tariff.price.usd(Use(*(value or 0.0 for value in high)))
            cost += Range(tariff.price.usd(low, self.cached), most)
        return cost + self.wall_sec * (tariff.usd_per_hour / 3600) if tariff.usd_per_hour else cost


def from_past(
    config: Config, scope: Scope, runs: Sequence[PastRun], start_sec: float, busy: bool = False
) -> Forecast | None:
    """None: no earlier run has finished what is needed. `start_sec`: of a process until it has found its tasks good.

    `busy`: this machine has more to do than it has processors, so time is uncertain.
    """
    steps = _near([unit for run in runs for unit in run.steps], scope.first_step, scope.steps)
    evaluations = [unit for run in runs for unit in run.evaluations] or steps
    if (scope.steps and not steps) or not (steps or evaluations):
        return None
    widen = FEW_FACTOR if len(runs) < FEW_RUNS else 1.0
    totals = {}
    for kind in KINDS:
        training = _total(steps, kind, scope.training_places, scope.steps, widen)
        evaluated = [] if kind == "trained" else evaluations
        totals[kind] = training + _total(evaluated, kind, scope.evaluation_places, scope.evaluations, widen)
    used = [*(steps if scope.steps else []), *(evaluations if scope.evaluations else [])]
    again = max((unit.started / unit.places for unit in used), default=1.0)
    if config.kl_penalty_coef:
        totals["prompt"] += totals["trained"]
    prompts = sum(unit.use.prompt for unit in steps)
    cached = max(0.0, 1 - sum(unit.said_once for unit in steps) / prompts) if prompts else 0.0
    return Forecast(
        trials=Range(scope.places, math.ceil(scope.places * again)),
        wall_sec=_wall(config, scope, runs, BUSY_SPREAD if busy else TIME_SPREAD)
        + Range(LEAST_START * start_sec, MOST_START * start_sec + END_SEC),
        cached=cached,
        source=f"{len(runs)} earlier run{'s' * (len(runs) > 1)} ({_named(runs)}): {len(steps)} batches, "
        f"{sum(len(run.evaluations) for run in runs)} evaluations",
        **totals,
    )


def _named(runs: Sequence[PastRun]) -> str:
    names = [run.name for run in runs[:3]]
    return ", ".join(names) + (", …" if len(runs) > len(names) else "")


def _near(units: Sequence[Unit], first: int, count: int) -> list[Unit]:
    """Batches of the same steps where there are some: a policy that learned takes other turns."""
    same = [unit for unit in units if first <= unit.index < first + count]
    return same if len(same) >= NEAR else list(units)


def _total(units: Sequence[Unit], kind: str, places: int, batches: int, widen: float) -> Range:
    if not units or not places:
        return Range(0.0, 0.0)
    values = [getattr(unit.use, kind) / unit.places for unit in units]
    time = kind == "container_sec"
    spread, least = (TIME_SPREAD, LEAST_TIME) if time else (TOKEN_SPREAD, LEAST_TOKENS)
    theirs = sum(unit.places for unit in units) / len(units)
    smaller = max(1.0, math.sqrt(theirs * batches / places))
    return predict(values, batches, spread=spread * widen, least=least * widen, widen=smaller) * places


def _wall(config: Config, scope: Scope, runs: Sequence[PastRun], spread: float) -> Range:
    """What the work that is left would have taken in each of the earlier runs, and from that what it will take.

    A run is one observation: what slows a machine or a cloud down slows all of its steps.
    """
    steps = [(run, unit) for run in runs for unit in run.steps]
    evaluations = [(run, unit) for run in runs for unit in run.evaluations] or steps
    beside = [run.beside_sec for run in runs if run.beside_sec is not None]

    def seconds(run: PastRun, unit: Unit, places: float) -> float:
        waves = (places / config.n_parallel_envs) / (unit.places / run.parallel)
        return unit.sample_sec * waves + unit.update_sec * places / unit.places

    def mean(pairs: Sequence[tuple[PastRun, Unit]], run: PastRun, places: float) -> float:
        """Of its own, else of all."""
        own = [pair for pair in pairs if pair[0] is run] or pairs
        return sum(seconds(*pair, places) for pair in own) / len(own)

    totals = []
    for run in runs:
        total = run.beside_sec if run.beside_sec is not None else sum(beside) / max(len(beside), 1)
        if scope.steps:
            places = scope.training_places / scope.steps
            cold = [pair for pair in steps if pair[1].first] or steps
            warm = [pair for pair in steps if not pair[1].first] or steps
            total += mean(cold, run, places) + (scope.steps - 1) * mean(warm, run, places)
        if scope.evaluations:
            total += scope.evaluations * mean(evaluations, run, scope.evaluation_places / scope.evaluations)
        totals.append(total)
    return predict_time(totals, spread=spread)


def from_limits(config: Config, scope: Scope) -> Forecast:
    """Bounds only: each trial ends at once, or uses all that its limits allow."""
    turns, context = config.max_turns or None, config.context_limit
    segments = turns if config.enable_summarize else 1  # the history is rewritten at each turn, at worst
    sampled = None if turns is None else min(turns * config.max_tokens, (segments or 1) * context)
    prompt = None if turns is None else turns * context
    trained = None if segments is None else segments * context
    limit = config.trial_timeout_sec or None
    waves = sum(
        count * math.ceil(places / count / config.n_parallel_envs)
        for count, places in ((scope.steps, scope.training_places), (scope.evaluations, scope.evaluation_places))
        if count
    )
    assumed = [f"a trial takes at least 1 turn, at most max_turns={config.max_turns or 'no limit'}"]
    assumed.append(f"a prompt has at most context_limit={context} tokens, an answer max_tokens={config.max_tokens}")
    assumed.append("no trial fails and is run again; time for updates and start is not in the upper bound")
    return Forecast(
        trials=Range(scope.places, scope.places),
        prompt=_upto(prompt, scope.places),
        sampled=_upto(sampled, scope.places),
        trained=_upto(trained, scope.training_places),
        container_sec=_upto(limit, scope.places),
        wall_sec=_upto(limit, waves),
        cached=0.0,
        source="limits only: no earlier run of this model on these tasks in logs_dir",
        assumptions=tuple(assumed),
    )


def _upto(most: float | None, times: int) -> Range:
    return Range(0.0, None if most is None else most * times)
