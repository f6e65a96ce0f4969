"""The commands `doctor docker` (checks that it can carry a run) and `doctor clean` (removes what runs left)."""

import asyncio
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import requests
from docker.errors import DockerException
from rich.console import Console
from rich.table import Table

from harbortrainer.cli.output import give_json
from harbortrainer.config import Config
from harbortrainer.docker.checks.preflight import check_docker, connect
from harbortrainer.docker.images.inventory import needs_note
from harbortrainer.docker.images.origins import set_origins
from harbortrainer.docker.images.supply import builds_at_once
from harbortrainer.docker.keeping.cleaning import GB, Candidate, candidates, disk_usage, end_processes
from harbortrainer.docker.keeping.ownership import RUN_ID
from harbortrainer.docker.network.bridge import isolate_compose, trial_network, uses_network
from harbortrainer.doctor.arguments import CleanArgs, DockerArgs
from harbortrainer.errors import EnvironmentFault, one_line
from harbortrainer.rollout.gates import n_containers
from harbortrainer.rollout.venue import STEPS_AHEAD
from harbortrainer.tasks.folders import folder_of, load_tasks

MB = 1000**2

Row = dict[str, Any]


async def preflight(args: DockerArgs) -> int:
    """Print how many environments can run. Raises UserError for what would stop a run."""
    set_origins(args.images, args.base_images)
    config = Config(
        model_name="",
        tasks_dir=args.tasks_dir or "",
        n_parallel_envs=args.n_parallel_envs,
        environment_kwargs=args.environment_kwargs,
    )
    tasks = load_tasks(args.tasks_dir) if args.tasks_dir else []
    n, paths = n_containers(config), [folder_of(task) for task in tasks]
    warnings = await asyncio.to_thread(check_docker, paths, n, args.environment_kwargs)
    ahead = config.batch_size * (1 + STEPS_AHEAD)
    needs = await asyncio.to_thread(needs_note, paths, builds_at_once(), ahead)
    for line in (*(f"warning: {warning}" for warning in warnings), *needs):
        print(line)
    if not paths or any(map(uses_network, paths)):
        network = await asyncio.to_thread(trial_network)
        if not network.exposed:  # else it was logged
            await asyncio.to_thread(isolate_compose)
            print(network.line)
    print(f"Docker can run {n} environments at once" + (f" of {len(tasks)} tasks" if tasks else ""))
    return 0


async def clean(args: CleanArgs) -> int:
    return await asyncio.to_thread(_clean, args)


def _clean(args: CleanArgs) -> int:
    connect()
    try:
        sizes, found = disk_usage(), candidates(args.images_older_than_days)
        if args.remove:
            end_processes(one.thing for one in found)
        lines = [_line(one, sizes, (one.thing.remove() or "removed") if args.remove else "") for one in found]
    except (DockerException, requests.RequestException) as error:
        reason = one_line(error)
        raise EnvironmentFault(f"Docker stopped answering ({reason}): run it again") from error
    if not give_json(json.dumps(lines, indent=2), args.json):
        _show(lines, args.remove)
    return 0 if all(line["result"] == "removed" for line in lines) or not args.remove else 1


def _line(one: Candidate, sizes: Mapping[tuple[str, str], int], result: str) -> Row:
    """One row of the report. `result`: "" listed only, removed, or why it could not be removed."""
    return {
        "kind": one.thing.kind,
        "name": one.thing.name,
        "run": one.thing.labels.get(RUN_ID, ""),
        "why": one.why,
        "used": datetime.fromtimestamp(one.used, UTC).isoformat(timespec="seconds") if one.used else "",
        "bytes": sizes.get((one.thing.kind, one.thing.id or one.thing.name), 0),
        "result": result,
    }


def _show(lines: list[Row], removed: bool) -> None:
    console = Console(highlight=False, markup=False)
    if not lines:
        console.print("nothing to remove")
        return
    table = Table(show_edge=False, pad_edge=False)
    for name in ("kind", "name", "why"):
        table.add_column(name, overflow="fold")
    table.add_column("age", justify="right")
    table.add_column("MB", justify="right")
    if removed:
        table.add_column("result", overflow="fold")
    for line in lines:
        cells = [line["kind"], line["name"], line["why"], _age(line["used"]), f"{line['bytes'] / MB:.1f}"]
        table.add_row(*cells, *([line["result"]] if removed else []))
    console.print(table)
    console.print(_summary(lines, removed))


def _summary(lines: list[Row], removed: bool) -> str:
    gone = [line for line in lines if line["result"] == "removed" or not removed]
    size = sum(line["bytes"] for line in gone) / GB
    if removed:
        return f"{len(gone)} of {len(lines)} removed, {size:.2f} GB"
    return f"{len(lines)} can be removed, {size:.2f} GB at least: add remove=true"


def _age(used: str) -> str:
    if not used:
        return ""
    hours = (time.time() - datetime.fromisoformat(used).timestamp()) / 3600
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"
