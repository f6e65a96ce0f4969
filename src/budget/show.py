"""A plan as a table that a person can read, in a terminal or in a file."""

from collections.abc import Sequence

from rich.table import Table

from src.budget.forecast import Forecast
from src.budget.prices import no_price
from src.budget.ranges import Range
from src.budget.scope import Scope
from src.evaluation.report import wide_console
from src.plan import Plan

UNITS = (("G", 1e9), ("M", 1e6), ("k", 1e3))


def show(plan: Plan, scope: Scope, forecast: Forecast, notes: Sequence[str]) -> None:
    """To stdout; plain where that is no terminal."""
    config, console = plan.config, wide_console()
    left = "" if plan.earlier is None else " left"
    console.print(
        f"plan: {config.model_name} on {config.backend}, {len(plan.train)} training tasks, "
        f"{len(plan.held_out)} held out\n"
        f"{scope.steps} of {plan.total_steps} steps{left}, of {config.batch_size} tasks x {config.group_size} trials; "
        f"{scope.evaluations} evaluations of {len(plan.held_out)} tasks x {config.eval_group_size}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    table = Table(show_edge=False, pad_edge=False)
    for name in ("", "low", "high"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_column("how it is counted")
    for name, range_, unit, how in _rows(plan, forecast):
        table.add_row(name, *_cells(range_, unit), how)
    console.print(table)
    console.print(f"estimated from: {forecast.source}", markup=False, soft_wrap=True)
    for line in (*(f"assumed: {text}" for text in forecast.assumptions), *notes):
        console.print(line, markup=False, soft_wrap=True)
    if forecast.assumptions:
        console.print(
            "for an estimate, let a short run of the same settings be the probe: max_steps=1 run_name=probe; "
            "the next plan finds it", markup=False, soft_wrap=True,
        )  # fmt: skip


def _rows(plan: Plan, forecast: Forecast) -> list[tuple[str, Range, str, str]]:
    said = f"; {forecast.cached:.0%} of it said before in its trial" if forecast.cached else ""
    rows = [
        ("trials", forecast.trials, "", "places of training and evaluation; high: with those run again"),
        ("tokens", forecast.tokens, "", "the three below"),
        ("  prompt", forecast.prompt, "", f"each turn's whole prompt{said}"),
        ("  sampled", forecast.sampled, "", "answers"),
        ("  trained", forecast.trained, "", "datums, prompts included"),
        ("container time", forecast.container_sec, "s", "all trials added up"),
        ("wall time", forecast.wall_sec, "s", f"{plan.config.n_parallel_envs} agents at once, start and end included"),
    ]
    usd = forecast.usd(plan.tariff)
    if usd is not None:
        rows.append(("cost", usd, "USD", _priced(plan)))
    return rows


def _priced(plan: Plan) -> str:
    tariff, parts = plan.tariff, []
    if tariff.price is not None:
        p = tariff.price
        parts.append(
            f"{tariff.source}: {p.prefill:g} prefill (cached {p.cached_prefill:g}), {p.sample:g} sample, "
            f"{p.train:g} train a million"
        )
    if tariff.usd_per_hour:
        parts.append(f"server_usd_per_hour={tariff.usd_per_hour:g} x wall time")
    return "; ".join(parts)


def cost_note(plan: Plan) -> str:
    """Why there is no cost."""
    if plan.config.backend == "tinker":
        return f"cost: {no_price(plan.config)}"
    return "cost: none known for your own server; give server_usd_per_hour=USD"


def _cells(range_: Range, unit: str) -> tuple[str, str]:
    return _shown(range_.low, unit), "no bound" if range_.high is None else _shown(range_.high, unit)


def _shown(value: float, unit: str) -> str:
    if unit == "USD":
        return f"{value:,.2f} USD"
    if unit == "s":
        return f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"
    for name, size in UNITS:
        if value >= 10 * size or (value >= size and size >= 1e6):
            return f"{value / size:.3g} {name}"
    return f"{value:.0f}"
