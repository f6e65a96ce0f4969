"""The dry run: forecasts trials, tokens, times and cost from earlier runs, else from the limits, and prints them."""

import json
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from rich.table import Table

from harbortrainer.backend.connect import Api, api_key, server_url
from harbortrainer.backend.contract import TINKER_DOCUMENTS, kind_of
from harbortrainer.backend.terms import agree
from harbortrainer.budget.account import BESIDE, Account, Spending
from harbortrainer.budget.budget import Budget, Pricing, no_price
from harbortrainer.cli.output import give_json, wide_console
from harbortrainer.config import SETTINGS, Config, ToolFormat
from harbortrainer.durable.facts import fact, unchanging
from harbortrainer.durable.files import read_json
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import TrialName
from harbortrainer.model_file import SCRIPTED, model_of
from harbortrainer.other_models.users import MOST_TOKENS
from harbortrainer.policy.chat_template import ChatTemplate, Renderer
from harbortrainer.run.config_changes import same_workload, to_json
from harbortrainer.run.directory import RunDirectory
from harbortrainer.tasks.split import SPLIT_FILE
from harbortrainer.text import counted
from harbortrainer.training.outside import Outside
from harbortrainer.training.plan import RunPlan
from harbortrainer.training.references import DRIFT_SEQUENCES
from harbortrainer.training.schedule import evaluation_due, task_order
from harbortrainer.training.session import prepare
from harbortrainer.training.start import BASE, START

LEAST_SHARED = 0.5  # of the planned tasks that an earlier run had too
NEWEST = 5  # runs that are read
log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class RemainingWork:
    """Steps, evaluations and their places; a graded trial fills one place, a failed one is run again."""

    first_step: int  # from 0
    steps: int
    training_places: int
    evaluations: int
    evaluation_places: int
    containers: bool = True  # False: conversations alone

    @property
    def places(self) -> int:
        return self.training_places + self.evaluation_places


@dataclass(frozen=True, slots=True)
class PastBatch:
    """A finished training step or evaluation. `spent`: by its update and all its trials, failed ones included."""

    evaluation: bool
    places: int
    started: int  # trials
    spent: Spending
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Spending):
    """What a run will use: an estimate, or with `assumptions` the most that its limits allow; inf = no bound is known.

    Times are seconds.
    """

    trials: float
    wall_sec: float
    source: str
    assumptions: tuple[str, ...] = ()

    def usd(self, pricing: Pricing) -> float | None:
        """Return the cost, with no prompt cached; None without a price or a bound."""
        of_time = self.wall_sec * pricing.usd_per_hour / 3600 if pricing.usd_per_hour else 0.0
        usd = pricing.of_tokens(self) + of_time
        return usd if pricing.known and math.isfinite(usd) else None


async def dry_run(config: Config, json_file: str | None = None, outside: Outside | None = None) -> int:
    """Run the checks that need no server, then print what the run would do and cost. Exit status 0.

    Raises UserError for whatever would stop the run at its start, and when `json_file` cannot be written.
    """
    outside = outside or Outside(load_template=cast(Any, KnownTemplate))
    with unchanging():
        prepared = await prepare(config, outside)
    plan = prepared.plan
    if plan.finished:
        print(f"{config.resume} is complete; to go on, give a higher n_epochs or max_steps")
        return 0
    if config.backend == "tinker":  # its contract is documented
        agree(config, kind_of(config), TINKER_DOCUMENTS)
    spent = Budget(config, plan.pricing)
    records = read_lines(plan.earlier.ledger, checked=True) if plan.earlier is not None else []
    for record in records:
        spent.count(record)
    work = remaining_work(plan, records, spent.account.waiting)
    forecast = from_past(config, work, past_batches(plan)) or from_limits(config, work)
    notes = [*prepared.notes, *plan.length_note, await _server(config, outside.api)]
    if plan.earlier is not None:
        notes.append(f"continues {plan.earlier.path} after step {work.first_step}; {spent.summary()}")
    if not plan.pricing.known and config.backend == "tinker":
        notes.append(f"cost: {no_price(config)}")
    elif not plan.pricing.known:
        notes.append("cost: unknown for your own server; give prices=FILE with its usd_per_hour")
    if (over := spent.over()) is not None:
        notes.append(f"{over[0]}: the run would stop at once")
    notes += _caps(config, spent, forecast)
    bounded = {name: None if value == math.inf else value for name, value in asdict(forecast).items()}
    found = {"scope": work, "forecast": bounded, "usd": forecast.usd(plan.pricing), "notes": notes}
    if not give_json(json.dumps(found, indent=2, default=asdict), json_file):
        _show(plan, work, forecast, notes)
    return 0


class KnownTemplate:
    """A model's chat template, of which a folder's files tell the digest; loaded where they are new, or more is asked.

    Loading imports transformers, which takes longer than all else in a plan.
    """

    def __init__(self, model_name: str, enable_thinking: bool, tool_format: ToolFormat) -> None:
        self._named = model_name, enable_thinking, tool_format
        folder = Path(model_name).expanduser().resolve()
        if enable_thinking or not folder.is_dir():  # which may warn, or is not here
            self.renderer = self._loaded.renderer
        else:
            known = fact(folder, f"renderer {tool_format}", lambda: asdict(self._loaded.renderer))
            self.renderer = Renderer(**known)

    @cached_property
    def _loaded(self) -> ChatTemplate:
        return ChatTemplate.load(*self._named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded, name)


def remaining_work(plan: RunPlan, records: Sequence[Mapping[str, Any]], waiting: int) -> RemainingWork:
    """Return work left. `records`: ledger of a resumed run; `waiting`: graded trials of a batch not trained on yet."""
    config, order = plan.config, task_order(plan.config, plan.train)
    trained = 1 + max((record["step"] for record in records if record["event"] == "trained"), default=-1)
    done = min(trained, plan.total_steps)
    places = sum(len(order.batch(step)) for step in range(done, plan.total_steps)) * config.group_size
    evaluations = 0
    if plan.held_out:
        rows = read_lines(plan.earlier.metrics) if plan.earlier is not None else []
        due = (
            s == order.total_steps - 1 or evaluation_due(config.eval_every, order, s)
            for s in range(done, plan.total_steps)
        )
        evaluations = int(done == 0 and not rows) + sum(due)
    evaluation_places = evaluations * len(plan.held_out) * config.eval_group_size
    training_places, containers = max(0, places - waiting), not all(task.has_user for task in plan.tasks)
    return RemainingWork(done, plan.total_steps - done, training_places, evaluations, evaluation_places, containers)


def past_batches(plan: RunPlan) -> dict[str, list[PastBatch]]:
    """Return batches by run: of the resumed run and the newest similar ones in `logs_dir`, without unreadable runs."""
    found = Path(plan.config.logs_dir).expanduser().glob("*/config.json")
    paths = [file.parent.resolve() for file in sorted(found, key=lambda file: -file.stat().st_mtime)]
    if plan.earlier is not None:
        paths.insert(0, plan.earlier.path.resolve())
    runs: dict[str, list[PastBatch]] = {}
    for path in dict.fromkeys(paths):
        try:
            if batches := list(_batches(RunDirectory(path), plan)):
                runs[path.name] = batches
        except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            log.warning("%s is left out of the estimate: %s", path, reason)
        if len(runs) == NEWEST:
            break
    return runs


def from_past(config: Config, work: RemainingWork, runs: Mapping[str, Sequence[PastBatch]]) -> Forecast | None:
    """Return the mean of the earlier batches' amounts a place, times the places left.

    None when no earlier run finished a batch of the kinds that are left.
    """
    batches = [batch for run in runs.values() for batch in run]
    training = [batch for batch in batches if not batch.evaluation]
    evaluations = [batch for batch in batches if batch.evaluation] or training
    if not batches or (work.steps and not training):
        return None

    def amount(of: Callable[[PastBatch], float]) -> float:
        return _scaled(training, of, work.training_places) + _scaled(evaluations, of, work.evaluation_places)

    kinds = [field.name for field in fields(Spending)]
    spent: dict[str, Any] = {kind: amount(lambda batch, kind=kind: getattr(batch.spent, kind)) for kind in kinds}
    spent["trained"] = _scaled(training, lambda batch: batch.spent.trained, work.training_places)
    spent["prompt"] += spent["trained"] * scored_share(config)
    names = ", ".join([*runs][:3]) + (", …" if len(runs) > 3 else "")
    return Forecast(
        **spent,
        trials=amount(lambda batch: batch.started),
        wall_sec=amount(lambda batch: batch.seconds),
        source=f"{counted(len(runs), 'earlier runs')} ({names}): {counted(len(training), 'batches')}, "
        f"{counted(sum(batch.evaluation for batch in batches), 'evaluations')}",
    )


def scored_share(config: Config) -> float:
    """Return tokens that are scored, per trained token: all of them for a KL penalty, some for `kl/start`; and by the
    policy before an update, for dppo and, but on this project's server, for observations.
    """
    before = config.loss_fn == "dppo" or (config.observation_loss_coef > 0 and config.backend == "tinker")
    some = min(1.0, DRIFT_SEQUENCES / (config.batch_size * config.group_size))
    same = config.kl_reference == START or (config.kl_reference == BASE and config.init_from is None)
    return before + ((1.0 + some * (not same)) if config.kl_penalty_coef else some)


def from_limits(config: Config, work: RemainingWork) -> Forecast:
    """Return the most: each trial uses all that its limits allow."""
    turns, limit = config.max_turns or math.inf, config.trial_timeout_sec or math.inf
    segments = turns if config.enable_summarize else 1  # at worst each turn summarises the history
    context, of_turns = config.context_limit, turns * config.max_tokens
    trained = _upto(segments * context, work.training_places)
    user = model_of("user", config.user)
    said = 0.0 if user is None or user.model == SCRIPTED else turns  # a message for each turn
    parts = ((work.steps, work.training_places), (work.evaluations, work.evaluation_places))
    waves = sum(n * math.ceil(places / n / config.n_parallel_envs) for n, places in parts if n)
    return Forecast(
        trials=work.places,
        prompt=_upto(turns * context, work.places) + trained * scored_share(config),
        sampled=_upto(of_turns if of_turns == math.inf else min(of_turns, segments * context), work.places),
        trained=trained,
        container_sec=_upto(limit if work.containers else 0.0, work.places),
        user_prompt=_upto(said * context, work.places),
        user_sampled=_upto(said * MOST_TOKENS, work.places),
        wall_sec=_upto(limit, waves),
        source="limits only: no earlier run of this model on these tasks in logs_dir",
        assumptions=(
            f"a trial takes max_turns={config.max_turns or 'no limit'}",
            f"a prompt has context_limit={context} tokens, an answer max_tokens={config.max_tokens}",
            f"no trial is run again; wall time: {config.n_parallel_envs} agents at once, no updates",
        ),
    )


def _batches(run: RunDirectory, plan: RunPlan) -> Iterator[PastBatch]:
    """Finished batches of a run with the same model, limits and tasks; of another run none."""
    config, parallel = read_json(run.config), SETTINGS["n_parallel_envs"].default
    if not same_workload(config, to_json(plan.config)):
        return
    if config.get("n_parallel_envs", parallel) != plan.config.n_parallel_envs:  # its batches take another time
        return
    split, planned = read_json(run.path / SPLIT_FILE, "train", "held_out"), {task.digest for task in plan.tasks}
    known = {task["digest"] for side in ("train", "held_out") for task in split[side].values()}
    if len(planned & known) < LEAST_SHARED * len(planned):
        return
    rows = {row["global_step"]: row for row in read_lines(run.metrics)}
    trials: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)  # records by kind and step
    for record in read_lines(run.ledger, checked=True):
        if (name := record.get("trial", "")) and record["event"] in ("started", "ended"):
            trial = TrialName.parse(name)
            trials[trial.kind, trial.step].append(record)
    for (kind, step), records in trials.items():
        if kind == "step" and "time/step" in (row := rows.get(step + 1, {})):
            yield _batch(records, False, row.get("train/tokens", 0.0), row["time/step"])
        elif kind == "eval" and "eval/reward_mean" in (row := rows.get(step, {})):
            yield _batch(records, True, 0.0, row["time/evaluate"])


def _batch(records: Sequence[Mapping[str, Any]], evaluation: bool, trained: float, seconds: float) -> PastBatch:
    account = Account()
    for record in records:
        account.count(record)
    started = {record["trial"] for record in records if record["event"] == "started"}
    slots = {TrialName.parse(name).first for name in started}
    spent = account.total + Spending(trained=trained)
    return PastBatch(evaluation, len(slots), len(started), spent, seconds)


def _scaled(batches: Sequence[PastBatch], amount: Callable[[PastBatch], float], places: int) -> float:
    return fmean([amount(batch) / batch.places for batch in batches]) * places if batches and places else 0.0


def _upto(most: float, times: int) -> float:
    return most * times if times else 0.0


async def _server(config: Config, api: Api) -> str:
    """One line on whether the server answers."""
    try:
        url = server_url(config)
        api_key(kind_of(config))
        await api.check_health(url, config)
    except UserError as error:
        return f"server: not asked, the run would be refused now: {error}"
    return f"server: {url} answers; what it serves and how it trains is checked when the run starts"


def _caps(config: Config, spent: Budget, forecast: Forecast) -> Iterator[str]:
    """A line for each cap that will or may end the run before its last step."""
    before = spent.account.total
    limits = [
        ("max_usd", config.max_usd, forecast.usd(spent.pricing), spent.usd(before) or 0.0),
        ("max_wall_sec", config.max_wall_sec, forecast.wall_sec, 0.0),
    ]
    for name, cap, amount, so_far in limits:
        if cap and (amount is None or so_far + amount >= cap):
            yield f"{name}={cap:g}: may end the run before its last step"


def _show(plan: RunPlan, work: RemainingWork, forecast: Forecast, notes: Sequence[str]) -> None:
    """Print the forecast to stdout, without escape sequences unless it is a terminal."""
    config, console = plan.config, wide_console()

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    left = "" if plan.earlier is None else " left"
    say(
        f"plan: {config.model_name} on {config.backend}, {counted(len(plan.train), 'training tasks')}, "
        f"{len(plan.held_out)} held out"
    )
    say(
        f"{work.steps} of {counted(plan.total_steps, 'steps')}{left}, of {counted(config.batch_size, 'tasks')} x "
        f"{config.group_size} trials; {counted(work.evaluations, 'evaluations')} of "
        f"{counted(len(plan.held_out), 'tasks')} x {config.eval_group_size}"
    )
    table = Table("", show_edge=False, pad_edge=False)
    table.add_column("at most" if forecast.assumptions else "estimate", justify="right")
    table.add_column("counted as")
    for name, amount, unit, how in _rows(plan, forecast):
        table.add_row(name, _number(amount, unit) if amount < math.inf else "no bound", how)
    console.print(table)
    for line in (f"estimated from: {forecast.source}", *(f"assumed: {a}" for a in forecast.assumptions), *notes):
        say(line)
    if forecast.assumptions:
        say("for an estimate, make a short run of these settings (max_steps=1 run_name=probe) and plan again")


def _rows(plan: RunPlan, forecast: Forecast) -> Iterator[tuple[str, float, str, str]]:
    yield "trials", forecast.trials, "", "of training and evaluation, repeated ones included"
    yield "tokens", forecast.tokens, "", "the three below"
    yield "  prompt", forecast.prompt, "", "each turn's whole prompt"
    yield "  sampled", forecast.sampled, "", "answers"
    yield "  trained", forecast.trained, "", "datums, prompts included"
    for name in BESIDE:
        if both := sum(forecast.beside(name)):
            yield f"  {name}", both, "", f"prompts and answers of {name}_model"
    yield "container time", forecast.container_sec, "s", "sum over all trials"
    yield "wall time", forecast.wall_sec, "s", f"steps and evaluations, {plan.config.n_parallel_envs} agents at once"
    pricing, parts = plan.pricing, []
    if not pricing.known:
        return
    if (p := pricing.price) is not None:
        prices = f"{p.prefill:g} prefill, {p.sample:g} sample, {p.train:g} train"
        parts.append(f"{pricing.source}: {prices} a million, no prompt cached")
    if pricing.usd_per_hour:
        parts.append(f"{pricing.usd_per_hour:g} USD an hour of the server x wall time")
    usd = forecast.usd(pricing)
    yield "cost", math.inf if usd is None else usd, "USD", "; ".join(parts)


def _number(value: float, unit: str) -> str:
    if unit == "USD":
        return f"{value:,.2f} USD"
    if unit == "s":
        return f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"
    for name, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 10 * size or (value >= size and size >= 1e6):
            return f"{value / size:.3g} {name}"
    return f"{value:.0f}"
