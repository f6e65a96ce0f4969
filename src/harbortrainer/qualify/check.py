"""The command `tasks check`: qualifies tasks in parallel and caches each report by the task's content."""

import asyncio
import contextlib
import hashlib
import json
import logging
import random
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

from rich.table import Table

from harbortrainer.cli.output import UNCUT, give_json, wide_console
from harbortrainer.config import Config
from harbortrainer.docker.checks.host import DockerHost, ServiceHost
from harbortrainer.docker.checks.preflight import check_docker
from harbortrainer.docker.daemon import Daemon, call
from harbortrainer.docker.images.origins import bases_key, set_origins
from harbortrainer.docker.images.supply import builds_at_once
from harbortrainer.docker.images.window import ImageWindow
from harbortrainer.docker.integrity.allowed import allowed
from harbortrainer.docker.keeping.cleaning import drain, reap
from harbortrainer.durable.files import cache_folder, replace_text
from harbortrainer.durable.listed import Listed, quoted
from harbortrainer.errors import UserError
from harbortrainer.harbor import quiet_harbor_log
from harbortrainer.qualify.arguments import CheckArgs
from harbortrainer.qualify.commands import task_folders
from harbortrainer.qualify.findings import UNSAMPLED, Finding, Severity, TaskReport
from harbortrainer.qualify.qualify import qualify, read
from harbortrainer.qualify.trials import QualificationTrials
from harbortrainer.rollout.gates import Gates, n_containers
from harbortrainer.setting import settings
from harbortrainer.stopping import first_error
from harbortrainer.tasks.folders import digest, find_fault, write_quarantine
from harbortrainer.tasks.split import duplicates
from harbortrainer.tasks.task import Task
from harbortrainer.tasks.venue import identify
from harbortrainer.venues.harbor.environment import check_tasks

_LIMITS = ("trial_timeout_sec", "slow_build_sec", "slow_trial_sec")  # they decide findings, too
_METHOD = 6  # raise it when a qualification changes what it finds


class Cache:
    """Reports on disk. `settings`: all that decides the findings besides the task."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder = folder
        self._settings = json.dumps([_METHOD, settings], sort_keys=True, default=str)

    def get(self, task: Path, digest: str) -> TaskReport | None:
        try:
            found = json.loads(self._file(task, digest).read_text())
        except (OSError, ValueError):
            return None
        findings = [Finding(one["kind"], Severity(one["level"]), one["detail"]) for one in found.pop("findings")]
        return replace(TaskReport(**found, findings=findings), name=task.name, path=str(task), cached=True)

    def open(self) -> None:
        """Create the folder. Raises UserError when it cannot be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self._folder).close()
        except OSError as error:
            raise UserError(
                f"XDG_CACHE_HOME: reports cannot be written to {self._folder} ({error.strerror}); let it name a folder "
                "in which you may write"
            ) from None

    def put(self, report: TaskReport) -> None:
        """Write the report to the open cache. Raises OSError."""
        replace_text(self._file(Path(report.path), report.digest), json.dumps(asdict(report)))

    def _file(self, task: Path, digest: str) -> Path:
        things = sorted(map(quoted, allowed(task)))
        key = f"{digest}{self._settings}{json.dumps(things) if things else ''}"
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


async def check(args: CheckArgs) -> int:
    """Exit status 1 when a task is bad. Raises UserError: a folder without tasks, or Docker cannot run the trials."""
    began = time.monotonic()
    paths = task_folders(args)
    reports = await qualify_all(paths, args)
    _note_duplicates(reports)
    if args.quarantine:
        _quarantine(reports)
    text = json.dumps({"tasks": [asdict(report) | {"verdict": report.verdict} for report in reports]}, indent=2)
    if not give_json(text, args.json):
        _show(reports, time.monotonic() - began)
    return 1 if any(report.bad for report in reports) else 0


async def qualify_all(paths: Sequence[Path], args: CheckArgs) -> list[TaskReport]:
    """Return one report a task, in order, from the cache where it has one."""
    set_origins(args.images, args.base_images)
    decide = {"n_oracle": args.n_oracle, "type": args.environment_type, **args.environment_kwargs}
    usual = settings(CheckArgs)
    decide |= {name: value for name in _LIMITS if (value := getattr(args, name)) != usual[name].default}
    decide |= {"bases": key} if (key := bases_key()) else {}
    cache = Cache(cache_folder("tasks"), decide)
    known = {path: cache.get(path, digest(path)) for path in paths} if args.cache else {}
    missing = [path for path in paths if known.get(path) is None]
    if missing:
        cache.open()
    drawn = sorted(random.Random(0).sample(missing, min(args.sample or len(missing), len(missing))))
    made = dict(zip(drawn, await _qualify(drawn, args, _keeping(cache, len(drawn))), strict=True))
    made |= {path: await asyncio.to_thread(_only_read, path) for path in missing if path not in made}
    return [made.get(path) or known[path] for path in paths]  # pyright: ignore[reportReturnType]


def _only_read(path: Path) -> TaskReport:
    report = read(path)
    report.add(UNSAMPLED, Severity.NOTE, "its files were read, and neither image nor verifier tried: sample=N")
    return report


def _keeping(cache: Cache, total: int) -> Callable[[TaskReport], None]:
    """A function that caches a report and prints its line: a check of many tasks takes minutes."""
    numbers = count(1)

    def keep(report: TaskReport) -> None:
        if not report.passing:
            cache.put(report)
        notes = "".join(f"; {one.kind}" for one in report.findings if one.level is not Severity.NOTE)
        print(f"{next(numbers)}/{total} {report.name}: {report.verdict}{notes}", file=sys.stderr, flush=True)

    return keep


async def _qualify(paths: Sequence[Path], args: CheckArgs, keep: Callable[[TaskReport], None]) -> list[TaskReport]:
    """`keep` gets each report as soon as it is made, so a stopped check continues from there."""
    if not paths:
        return []
    config = _config(args)
    local = args.environment_type == "docker"
    await asyncio.to_thread(_preflight, paths, config)
    quiet_harbor_log()
    logging.getLogger("harbortrainer.harbor").setLevel(logging.CRITICAL)  # the reports have the faults
    run_id = f"check-{uuid.uuid4().hex[:8]}"
    one_by_one = asyncio.Semaphore(args.n_parallel)  # the first tasks end before the last begin

    window = await asyncio.to_thread(ImageWindow, args.images_gb) if local else None
    under_way = set[Path]()

    async def kept(path: Path) -> TaskReport:
        async with one_by_one, _within(window, path, under_way):
            report = await qualify(path, trials, args, building)
        keep(report)
        return report

    with tempfile.TemporaryDirectory(prefix="harbortrainer-check-") as folder:
        daemon = Daemon(config.outage_limit_sec, (DockerHost() if local else ServiceHost()).ping)
        trials = QualificationTrials(config, run_id, Path(folder), Gates.of(config), daemon)
        building = asyncio.Semaphore(builds_at_once())
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(kept(path)) for path in paths]
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        finally:
            daemon.close()
            await drain()
            if local:
                await asyncio.to_thread(reap, run_id)
    return [task.result() for task in running]


@contextlib.asynccontextmanager
async def _within(window: ImageWindow | None, path: Path, under_way: set[Path]) -> AsyncIterator[None]:
    """Make room for the images of a task, which stay within the block."""
    if window is None or find_fault(path) is not None:
        yield
        return
    under_way.add(path)
    try:
        with await call(window.hold, path):
            await call(window.make_room, path, len(under_way), under_way, ())
            yield
    finally:
        under_way.discard(path)


def _config(args: CheckArgs) -> Config:
    return Config(
        model_name="",
        tasks_dir="",
        n_parallel_envs=args.n_parallel,
        trial_timeout_sec=args.trial_timeout_sec,
        environment_type=args.environment_type,
        environment_kwargs=args.environment_kwargs,
    )


def _preflight(paths: Sequence[Path], config: Config) -> None:
    """Raises UserError when the environment or Docker cannot run the tasks."""
    usable = [path for path in paths if find_fault(path) is None]
    check_tasks(usable, config.environment_type, config.environment_kwargs)
    if config.environment_type == "docker":
        check_docker(usable, n_containers(config), config.environment_kwargs)


def _note_duplicates(reports: Sequence[TaskReport]) -> None:
    by_path = {report.path: report for report in reports}
    identities = [identify(Task(report.path, Path(report.path), report.digest)) for report in reports]
    for path, first, reason in duplicates(identities):
        by_path[path].add("duplicate", Severity.ERROR, f"has {reason} as {by_path[first].name}")


def _quarantine(reports: Sequence[TaskReport]) -> None:
    folders: dict[Path, list[TaskReport]] = defaultdict(list)
    for report in reports:
        folders[Path(report.path).parent].append(report)
    for folder, members in folders.items():
        bad = [Listed(one.name, one.digest, one.reason) for one in members if one.bad]
        write_quarantine(folder, bad, [one.name for one in members if not one.bad and not one.passing])


def _show(reports: Sequence[TaskReport], seconds: float) -> None:
    console = wide_console(UNCUT)
    table = Table(show_edge=False, pad_edge=False)
    for name in ("task", "verdict", "oracle", "no-op", "build s", "trial s", "findings"):
        table.add_column(name, overflow="fold", justify="right" if name.endswith(" s") else "left")
    for report in reports:
        won = sum(reward is not None and reward >= 1 for reward in report.oracle)
        oracle = f"{won}/{len(report.oracle)}" + (f" x{report.repeats}" if report.repeats else "")
        notes = "\n".join(f"{one.level}: {one.kind}: {one.detail}" for one in report.findings)
        no_op = "" if report.no_op is None else f"{report.no_op:g}"
        times = [f"{report.build_sec:.1f}", f"{report.trial_sec:.1f}"]
        table.add_row(report.name, report.verdict, oracle if report.oracle else "", no_op, *times, notes)
    console.print(table)
    counts = {verdict: sum(one.verdict == verdict for one in reports) for verdict in ("good", "unproven", "bad")}
    cached = sum(report.cached for report in reports)
    notes = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    console.print(f"{len(reports)} tasks: {notes}; {cached} cached; {seconds:.1f} s", markup=False)
