"""`python -m src.train … plan=true`: what the run would do and cost. Nothing is spent, no run directory is made."""

import asyncio
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from src.backend.connect import api_key, server_url
from src.backend.contract import TINKER_DOCUMENTS
from src.backend.disk_note import disk_note
from src.backend.health import check_health
from src.backend.kind import kind_of
from src.backend.terms import agree
from src.budget.budget import Budget
from src.budget.forecast import Forecast, from_limits, from_past
from src.budget.machine import busy_share
from src.budget.past import past_runs, read_records
from src.budget.scope import scope_of
from src.budget.show import cost_note, show
from src.cli.output import give_json
from src.config import Config
from src.errors import UserError
from src.plan import Plan

BUSY_SHARE = 0.5  # of the processors' time
LOOK_SEC = 1.0


async def dry_run(plan: Plan) -> int:
    """To be called once tasks, Docker and chat template were found good. Prints the plan. Exit status 0.

    Raises UserError: a setting that Tinker cloud would not honour, the file of `json` cannot be written.
    """
    config = plan.config
    if config.backend == "tinker":  # whose contract is known without asking it
        agree(config, kind_of(config), TINKER_DOCUMENTS)
    spent = Budget(config, plan.tariff)
    records = read_records(plan.earlier) if plan.earlier is not None else []
    for record in records:
        spent.count(record)
    scope = scope_of(plan, records, spent.account.waiting)
    earlier = [plan.earlier.path] if plan.earlier is not None else []
    runs = past_runs(config, {task.digest for task in plan.tasks}, earlier)
    start_sec = _process_seconds()
    share = await asyncio.to_thread(busy_share, LOOK_SEC)
    busy = share > BUSY_SHARE
    forecast = from_past(config, scope, runs, start_sec, busy) or from_limits(config, scope)
    server, about = await _server(config)
    notes = [server, disk_note(config, plan.total_steps, about)]
    if plan.earlier is not None:
        notes.append(f"continues {plan.earlier.path} after step {scope.first_step}; {spent.summary()}")
    if busy:
        notes.append(f"this machine is busy ({share:.0%} of its processors' time): wall time is less certain than else")
    if not plan.tariff.known:
        notes.append(cost_note(plan))
    if (over := spent.over()) is not None:
        notes.append(f"{over[0]}: it would stop at once")
    notes += _caps(config, spent, forecast)
    found = {"scope": scope, "forecast": forecast, "usd": forecast.usd(plan.tariff), "notes": notes}
    if not give_json(json.dumps(found, indent=2, default=_plain), config.json):
        show(plan, scope, forecast, notes)
    return 0


async def _server(config: Config) -> tuple[str, dict[str, Any]]:
    """What is known of the server, in a line, and what it says of itself. It need not be there."""
    try:
        url = server_url(config)
        api_key(kind_of(config))
        about = await check_health(url, config)
    except UserError as error:
        return f"server: not asked, the run would be refused now: {error}", {}
    return f"server: {url} answers; what it serves and how it trains is checked when the run starts", about


def _caps(config: Config, spent: Budget, forecast: Forecast) -> list[str]:
    """Caps that may end the run before its end."""
    usd = forecast.usd(spent.tariff)
    hours = forecast.container_sec * (1 / 3600)
    before = spent.account.total
    limits = [
        ("max_usd", config.max_usd, usd, spent.usd(before) or 0.0),
        ("max_tokens_total", config.max_tokens_total, forecast.tokens, before.tokens),
        ("max_container_hours", config.max_container_hours, hours, before.container_sec / 3600),
        ("max_wall_sec", config.max_wall_sec, forecast.wall_sec, 0.0),
    ]
    notes = []
    for name, cap, range_, so_far in limits:
        if not cap or range_ is None:
            continue
        if so_far + range_.low >= cap:
            notes.append(f"{name}={cap:g}: ends the run before its last step")
        elif range_.high is None or so_far + range_.high >= cap:
            notes.append(f"{name}={cap:g}: may end the run before its last step")
    return notes


def _process_seconds() -> float:
    """Since this process began; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return 0.0


def _plain(value: Any) -> Any:
    return asdict(value)
