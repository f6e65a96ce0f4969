"""The commands `tasks list`, `show`, `split`, `close` and `get`: describe and fetch tasks without running them."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import requests
from docker.errors import DockerException

from harbortrainer.cli.output import give_json
from harbortrainer.docker.images.inventory import missing_images, missing_note
from harbortrainer.durable.facts import unchanging
from harbortrainer.durable.listed import Listed
from harbortrainer.errors import UserError
from harbortrainer.qualify.arguments import CloseArgs, GetArgs, ListArgs, SplitArgs
from harbortrainer.tasks.close import close
from harbortrainer.tasks.fetch import DATASET, DIGESTS, check_digests, fetch_dataset
from harbortrainer.tasks.folders import (
    digest,
    find_fault,
    looks_like_task,
    metadata,
    no_task_in,
    read_quarantine,
)
from harbortrainer.tasks.sources import chosen_names, find_sources, load_sources, name_families, with_families
from harbortrainer.tasks.split import families, families_note, split_record, split_tasks
from harbortrainer.tasks.task import FOLDERS, Task
from harbortrainer.tasks.venue import identify
from harbortrainer.venues.harbor.reading import read_listed

_SHORT = 12  # digits of a digest in a table


async def list_tasks(args: ListArgs) -> int:
    """Print a row a task: fault or quarantine, family, digest, metadata; then which images Docker lacks."""
    with unchanging():
        read_listed(paths := task_folders(args))
        listed = {folder: read_quarantine(folder) for folder in {path.parent for path in paths}}
        rows = [_row(path, listed[path.parent]) for path in paths]
        image_lines = await asyncio.to_thread(_add_images, rows)
        named = name_families([row["name"] for row in rows], None)
        tasks = [Task(p := row["path"], Path(p), row["digest"], family=named.get(row["name"], "")) for row in rows]
        family = families(list(map(identify, tasks)))
    for row in rows:
        row["family"] = Path(family[row["path"]]).name
    if not give_json(json.dumps(rows, indent=2), args.json):
        _table(("name", "family", "category", "difficulty", "digest", "fault"), rows)
        count = len({row["family"] for row in rows})
        print(f"{len(rows)} tasks in {count} families", *image_lines, sep="\n")
    return 0


async def split(args: SplitArgs) -> int:
    """Print the split that a run with these settings would have."""
    if bool(args.eval_split) == bool(args.eval_tasks):
        raise UserError("eval_split, eval_tasks: give one of the two")
    tasks = [Task(path.name, path, digest(path)) for path in task_folders(args)]
    tasks = with_families(tasks, args.family)
    twice = [name for name, count in Counter(task.name for task in tasks).items() if count > 1]
    if twice:
        raise UserError(f"dirs: {twice[0]} is in more than one of them; split one folder at a time")
    with unchanging():
        sides = split_tasks(tasks, args.eval_split, args.eval_tasks, args.seed, args.allow_family_overlap)
        record = split_record(*sides, args.allow_family_overlap)
    if not give_json(json.dumps(record, indent=2), args.json):
        rows = [
            {"name": name, "side": side.replace("_", " "), "family": known["family"]}
            for side in ("train", "held_out")
            for name, known in record[side].items()
        ]
        _table(("name", "side", "family"), rows)
        print(*families_note(tasks, args.family), f"{len(sides[0])} training tasks, {len(sides[1])} held out", sep="\n")
    return 0


async def list_close(args: CloseArgs) -> int:
    """Print the tasks of A that are close to tasks of B. Exit status: 1 = there are some. Raises UserError."""
    with unchanging():
        tasks, others = (load_sources(find_sources(given)) for given in (args.a, args.b))
        found = close(tasks, others)
    if not give_json(json.dumps(list(map(asdict, found)), indent=2), args.json):
        _table(("name", "other", "why"), list(map(asdict, found)))
        print(f"{len(found)} of {len(tasks)} tasks are close to one of {len(others)}")
    return int(bool(found))


async def get(args: GetArgs) -> int:
    """Fetch a dataset, or check the one that was fetched. Raises UserError."""
    if len(args.dirs) != 1 or not DATASET.fullmatch(args.dirs[0]):
        raise UserError(
            f"{','.join(args.dirs)}: give one NAME@VERSION or ORG/NAME@VERSION, such as terminal-bench@2.0 or "
            "terminal-bench/terminal-bench-2-1@latest"
        )
    folder = Path(args.to).expanduser()
    if (folder / DIGESTS).is_file():
        await asyncio.to_thread(check_digests, folder)
        print(f"{folder} exists already, unchanged since it was fetched")
    elif folder.exists():
        raise UserError(f"to={args.to}: exists and was not fetched by this command; name another folder, or remove it")
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fetched = await asyncio.to_thread(fetch_dataset, args.dirs[0], args.registry, folder)
        print(f"{fetched} are in {folder}; their digests in {folder / DIGESTS}")
    return 0


def task_folders(args: ListArgs) -> list[Path]:
    """Return folders of the tasks that the arguments name: tasks, and sources as a run takes them. Raises UserError."""
    found: dict[Path, None] = {}
    given = {part: Path(part).expanduser() for name in args.dirs for part in name.split(",") if part}
    alone = [folder for folder in given.values() if looks_like_task(folder)]
    others = [str(folder) if folder.is_dir() else part for part, folder in given.items() if folder not in alone]
    sources = find_sources(",".join(others)) if others else []
    for source in sources:
        if source.venue != FOLDERS:
            raise UserError(f"{source.given}: has conversations, not folders of Harbor tasks; give one of these")
    for source, names in chosen_names(sources, args.tasks_include, args.tasks_exclude).items():
        if not names:
            raise UserError(no_task_in(source.path))
        found |= dict.fromkeys((Path(source.path) / name).resolve() for name, wanted in names.items() if wanted)
    found = dict.fromkeys(folder.resolve() for folder in alone) | found
    if not found:
        raise UserError(f"tasks_exclude={','.join(args.tasks_exclude)}: leaves no task")
    return list(found)


def _row(path: Path, quarantine: Mapping[str, Listed]) -> dict[str, Any]:
    family, category, difficulty = metadata(path)
    listed = quarantine.get(path.name)
    fault = find_fault(path) or ("" if listed is None else f"quarantined: {listed.text}")
    return {
        "name": path.name,
        "path": str(path),
        "digest": digest(path),
        "family": family,
        "category": category,
        "difficulty": difficulty,
        "fault": fault,
        "image": "",
    }


def _add_images(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Write into each row what its image needs. Returns lines on it; one also where Docker does not answer. Blocks."""
    whole = [row for row in rows if not row["fault"]]
    rows_of = {row["path"]: row for row in whole}
    try:
        for task, missing in missing_images([Path(row["path"]) for row in whole]).items():
            rows_of[str(task)]["image"] = missing
    except (DockerException, requests.RequestException):
        return ["task images: not looked at, Docker does not answer"]
    return missing_note({row["name"]: row["image"] for row in whole})


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    cells = [columns, *([str(row[name])[: _SHORT if name == "digest" else None] for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["─" * width for width in widths])
    for line in cells:
        print("   ".join(map(str.ljust, line, widths)).rstrip())
