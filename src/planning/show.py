"""`python -m src.train … --dry-run`: prints what the run would do and cost. Spends nothing, makes no run directory."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from src.backend.api import Api
from src.backend.connect import api_key, server_url
from src.backend.contract import TINKER_DOCUMENTS
from src.backend.disk_note import disk_note
from src.backend.kind import kind_of
from src.backend.terms import agree
from src.budget.budget import Budget
from src.budget.prices import no_price
from src.cli.output import give_json, wide_console
from src.config import Config
from src.errors import UserError
from src.outside import Outside
from src.plan import Plan
from src.planning.forecast import Forecast, Range, RemainingWork, from_limits, from_past, past_batches, remaining_work
from src.run.jsonl import read_lines
from src.session import prepare


async def dry_run(config: Config, outside: Outside | None = None) -> int:
    """Make the checks of a run that need no server, then print what it would do and cost. Exit status 0.

    Raises UserError for whatever would stop the run at its start, and when the file of `json` cannot be written.
    """
    outside = outside or Outside()
    prepared = await prepare(config, outside)
    plan = prepared.plan
    if plan.finished:
        print(f"{config.resume} is complete; to go on, give a higher n_epochs or max_steps")
        return 0
    if config.backend == "tinker":  # its contract is documented: no need to ask the server
        agree(config, kind_of(config), TINKER_DOCUMENTS)
    spent = Budget(config, plan.pricing)
    records = read_lines(plan.earlier.ledger, checked=True) if plan.earlier is not None else []
    for record in records:
        spent.count(record)
    work = remaining_work(plan, records, spent.account.waiting)
    forecast = from_past(config, work, past_batches(plan)) or from_limits(config, work)
    server, about = await _server(config, outside.api)
    notes = [
        *prepared.notes,
        *plan.length_note,
        server,
        disk_note(config, plan.total_steps, outside.api.base_model(config.model_name), about),
    ]
    if plan.earlier is not None:
        notes.append(f"continues {plan.earlier.path} after step {work.first_step}; {spent.summary()}")
    if not plan.pricing.known and config.backend == "tinker":
        notes.append(f"cost: {no_price(config)}")
    elif not plan.pricing.known:
        notes.append("cost: unknown for your own server; give server_usd_per_hour=USD")
    if (over := spent.over()) is not None:
        notes.append(f"{over[0]}: it would stop at once")
    notes += _caps(config, spent, forecast)
    found = {"scope": work, "forecast": forecast, "usd": forecast.usd(plan.pricing), "notes": notes}
    if not give_json(json.dumps(found, indent=2, default=asdict), config.json):
        _show(plan, work, forecast, notes)
    return 0


async def _server(config: Config, api: Api) -> tuple[str, dict[str, Any]]:
    """One line on whether the server answers, and its description of itself."""
    try:
        url = server_url(config)
        api_key(kind_of(config))
        about = await api.check_health(url, config)
    except UserError as error:
        return f"server: not asked, the run would be refused now: {error}", {}
    return f"server: {url} answers; what it serves and how it trains is checked when the run starts", about


def _caps(config: Config, spent: Budget, forecast: Forecast) -> Iterator[str]:
    """Caps that will or may end the run before its last step."""
    before, hours = spent.account.total, forecast.container_sec * (1 / 3600)
    limits = [
        ("max_usd", config.max_usd, forecast.usd(spent.pricing), spent.usd(before) or 0.0),
        ("max_tokens_total", config.max_tokens_total, forecast.tokens, before.tokens),
        ("max_container_hours", config.max_container_hours, hours, before.container_sec / 3600),
        ("max_wall_sec", config.max_wall_sec, forecast.wall_sec, 0.0),
    ]
    for name, cap, range_, so_far in limits:
        if not cap or range_ is None:
            continue
        if so_far + range_.low >= cap:
            yield f"{name}={cap:g}: ends the run before its last step"
        elif range_.high is None or so_far + range_.high >= cap:
            yield f"{name}={cap:g}: may end the run before its last step"


def _show(plan: Plan, work: RemainingWork, forecast: Forecast, notes: Sequence[str]) -> None:
    """To stdout; without escape sequences unless that is a terminal."""
    config, console = plan.config, wide_console()
    left = "" if plan.earlier is None else " left"
    lines = [
        f"plan: {config.model_name} on {config.backend}, {len(plan.train)} training tasks, "
        f"{len(plan.held_out)} held out",
        f"{work.steps} of {plan.total_steps} steps{left}, of {config.batch_size} tasks x {config.group_size} trials; "
        f"{work.evaluations} evaluations of {len(plan.held_out)} tasks x {config.eval_group_size}",
    ]
    table = Table("", show_edge=False, pad_edge=False)
    for name in ("low", "mean", "high"):
        table.add_column(name, justify="right")
    table.add_column("counted as")
    for name, range_, unit, how in _rows(plan, forecast):
        mean = "" if range_.mean is None else _number(range_.mean, unit)
        high = "no bound" if range_.high is None else _number(range_.high, unit)
        table.add_row(name, _number(range_.low, unit), mean, high, how)
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    console.print(table)
    lines = [f"estimated from: {forecast.source}", *(f"assumed: {text}" for text in forecast.assumptions), *notes]
    if forecast.assumptions:
        lines.append("for an estimate, make a short run of these settings (max_steps=1 run_name=probe) and plan again")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _rows(plan: Plan, forecast: Forecast) -> Iterator[tuple[str, Range, str, str]]:
    repeated = f"; {forecast.cached:.0%} repeats an earlier prompt of its trial" if forecast.cached else ""
    yield "trials", forecast.trials, "", "of training and evaluation, those run again included"
    yield "tokens", forecast.tokens, "", "the three below"
    yield "  prompt", forecast.prompt, "", f"each turn's whole prompt{repeated}"
    yield "  sampled", forecast.sampled, "", "answers"
    yield "  trained", forecast.trained, "", "datums, prompts included"
    yield "container time", forecast.container_sec, "s", "sum over all trials"
    yield "wall time", forecast.wall_sec, "s", f"steps and evaluations, {plan.config.n_parallel_envs} agents at once"
    pricing, parts = plan.pricing, []
    if (cost := forecast.usd(pricing)) is None:
        return
    if (p := pricing.price) is not None:
        prices = f"{p.prefill:g} prefill (cached {p.cached_prefill:g}), {p.sample:g} sample, {p.train:g} train"
        parts.append(f"{pricing.source}: {prices} a million")
    if pricing.usd_per_hour:
        parts.append(f"server_usd_per_hour={pricing.usd_per_hour:g} x wall time")
    yield "cost", cost, "USD", "; ".join(parts)


def _number(value: float, unit: str) -> str:
    if unit == "USD":
        return f"{value:,.2f} USD"
    if unit == "s":
        return f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"
    for name, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 10 * size or (value >= size and size >= 1e6):
            return f"{value / size:.3g} {name}"
    return f"{value:.0f}"
