"""The oracle's rewards on every shape of task: in Harbor's own Docker environment, and in ours.

    python -m bench.task_shapes [--only SHAPE ...] [--ours] [--write]

A trial in Harbor's own takes 15 to 20 s. Exit status 1 when ours differs from Harbor's where that works, or from 1.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HARBOR_TELEMETRY", "0")

from harbor.models.environment_type import EnvironmentType
from harbor.models.trial.config import EnvironmentConfig

from bench import report
from harbortrainer.docker.keeping import cleaning
from harbortrainer.docker.keeping.cleaning import reap
from harbortrainer.venues.harbor.environment import environment_config
from tests.support.oracle import Rewards, rewards_of, run_oracle
from tests.support.shapes import SHAPES, write_shape

RUN_ID = "bench-shapes"
HEADINGS = ("task shape", "Harbor's own", "ours", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SHAPES, metavar="SHAPE", help="some shapes: " + ", ".join(SHAPES))
    parser.add_argument("--ours", action="store_true", help="leave Harbor's own environment out")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    arguments = parser.parse_args()
    try:
        ok = asyncio.run(_compare(arguments))
    finally:
        reap(RUN_ID)
    sys.exit(0 if ok else 1)


async def _compare(arguments: argparse.Namespace) -> bool:
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="shapes-") as folder:
        for name in arguments.only or SHAPES:
            task = write_shape(name, Path(folder))
            theirs = None if arguments.ours else await _rewards(task, EnvironmentConfig(type=EnvironmentType.DOCKER))
            ours = await _rewards(task, environment_config("docker", {}, task, RUN_ID))
            rows.append([name, _told(theirs), _told(ours), "" if _agree(theirs, ours) else "**differs**"])
            print(*rows[-1], sep=" | ", flush=True)
        await cleaning.drain()
    document = report.RESULTS if arguments.write else None
    report.publish("bench.task_shapes", "task shapes", HEADINGS, rows, document)
    return all(not row[-1] for row in rows)


async def _rewards(task: Path, environment: EnvironmentConfig) -> Rewards | str:
    try:
        return rewards_of(await run_oracle(task, environment))
    except (OSError, ValueError, RuntimeError) as error:  # the task is refused
        return f"{type(error).__name__}: {error}"


def _agree(theirs: Rewards | str | None, ours: Rewards | str) -> bool:
    if isinstance(theirs, dict):
        return theirs == ours
    return isinstance(ours, dict) and ours.get("reward") == 1


def _told(rewards: Rewards | str | None) -> str:
    if rewards is None:
        return ""
    if isinstance(rewards, str):
        return " ".join(rewards.split())[:120]
    return ", ".join(f"{name} {value:g}" for name, value in rewards.items())


if __name__ == "__main__":
    main()
