"""The command `tasks build`: makes the images of tasks ahead of a run; what is made already is not made again."""

import asyncio
import contextlib
import json
import sys
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harbortrainer.cli.output import give_json
from harbortrainer.config import AUTO
from harbortrainer.docker.box.compose import COMPOSE
from harbortrainer.docker.checks.host import DockerHost, cleaned, maker
from harbortrainer.docker.checks.preflight import connect
from harbortrainer.docker.daemon import call
from harbortrainer.docker.images.builds import ImageError
from harbortrainer.docker.images.inventory import has_images
from harbortrainer.docker.images.origins import set_origins
from harbortrainer.docker.images.supply import ImageSupply, builds_at_once
from harbortrainer.docker.images.window import ImageWindow
from harbortrainer.qualify.arguments import BuildArgs
from harbortrainer.qualify.commands import task_folders
from harbortrainer.stopping import in_daemon_thread
from harbortrainer.tasks.folders import find_fault
from harbortrainer.venues.harbor.environment import PREBUILT_ONLY

NO_ROOM = "no room for more images within images_gb; a run makes them when it needs them, or keep them by images="


async def build(args: BuildArgs) -> int:
    """Exit status 1 when an image cannot be made. Raises UserError: no such tasks, no daemon."""
    began = time.monotonic()
    paths = await asyncio.to_thread(task_folders, args)
    set_origins(args.images, args.base_images)
    await asyncio.to_thread(connect)
    faults = {path: fault for path in paths if (fault := find_fault(path))}
    whole, made = [path for path in paths if path not in faults], list[Path]()
    lacking = faults | await _build(whole, args, made)
    rows = [{"name": path.name, "path": str(path), "why": lacking.get(path, "")} for path in paths]
    if not give_json(json.dumps(rows, indent=2), args.json):
        _show(paths, made, lacking, time.monotonic() - began)
    return 1 if lacking else 0


@dataclass(slots=True)
class _Filling:
    """A window that keeps all images of this command: without a registry they would be made in vain."""

    window: ImageWindow
    paths: Sequence[Path]
    full: bool = False

    def hold(self, task: Path) -> contextlib.ExitStack:
        return self.window.hold(task)

    def make_room(
        self, task: Path, making: int, held: Collection[Path], ahead: Sequence[Path]
    ) -> tuple[bool, set[Path]]:
        self.full = not self.window.make_room(task, making, {*held, *self.paths}, ())[0]
        return True, set()


async def _build(paths: Sequence[Path], args: BuildArgs, made: list[Path]) -> dict[Path, str]:
    """Why tasks have no image; adds those to `made` whose images Docker lacked."""
    run_id, host, found = f"build-{uuid.uuid4().hex[:8]}", DockerHost(), dict[Path, str]()
    one = maker(host, run_id, bool(args.environment_kwargs.get(PREBUILT_ONLY)), _say)

    async def make(path: Path) -> bool:
        if filling is not None and filling.full and not await call(has_images, path):
            raise ImageError(NO_ROOM)
        if fresh := await one(path):
            made.append(path)
        return fresh

    async def supplied(supply: ImageSupply, path: Path) -> None:
        async with supply.supplied(path) as why:
            if why:
                found[path] = why
                _say(f"{path.name}: {why}")

    n = builds_at_once() if args.n_parallel == AUTO else args.n_parallel
    patience = args.outage_limit_sec
    async with cleaned(host, run_id, _say):
        window = await in_daemon_thread(ImageWindow, args.images_gb)
        filling = _Filling(window, paths) if args.images is None else None
        supplying = ImageSupply(make, n, patience, _say, 0, window=filling or window, push=host.push)
        async with supplying as supply:
            supply.expect(paths)
            await asyncio.gather(*(supplied(supply, path) for path in paths))
    return found


def _show(paths: Sequence[Path], made: Sequence[Path], lacking: Mapping[Path, str], seconds: float) -> None:
    for path, why in lacking.items():
        print(f"{path.name}: {why}")
    composed = sum((path / "environment" / COMPOSE).exists() for path in paths if path not in (*made, *lacking))
    here = len(paths) - len(made) - len(lacking) - composed
    line = f"{len(paths)} tasks: images of {len(made)} made, of {here} here before, of {len(lacking)} not to be made"
    line += f", of {composed} left to their trials, by docker compose" if composed else ""
    print(f"{line}; {seconds:.0f} s")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
