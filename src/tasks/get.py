"""`python -m src.tasks get NAME@VERSION to=FOLDER`: a dataset of a registry, with digests and what it needs."""

import asyncio
import re
import tomllib
from pathlib import Path

from src.errors import UserError
from src.rollout.task import looks_like_task
from src.tasks.arguments import GetArgs
from src.tasks.fetch import DIGESTS, check_digests, fetch_dataset
from src.tasks.findings import fetches


async def get(args: GetArgs) -> int:
    """Raises UserError: not there, no way to it, or changed since it was fetched."""
    if len(args.dirs) != 1 or not re.fullmatch(r"[^/@]+@[^/@]+", args.dirs[0]):
        raise UserError(f"{','.join(args.dirs)}: give one NAME@VERSION, such as terminal-bench@2.0")
    folder = Path(args.to).expanduser()
    if (folder / DIGESTS).is_file():
        await asyncio.to_thread(check_digests, folder)
        print(f"{folder} is there already, and as it was fetched")
    elif folder.exists():
        raise UserError(f"to={args.to}: is there, and not fetched by this command; name another folder, or remove it")
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fetched = await asyncio.to_thread(fetch_dataset, args.dirs[0], args.registry, folder)
        print(f"{fetched} are in {folder}; their digests in {folder / DIGESTS}")
    for line in needs(folder):
        print(line)
    return 0


def needs(folder: Path) -> list[str]:
    """What the tasks of a folder want of the machine besides Docker."""
    tasks = [path for path in sorted(folder.iterdir()) if looks_like_task(path)]
    images = [image for path in tasks if (image := _prebuilt(path))]
    fetching = [path for path in tasks if any(one.kind == "verifier fetches" for one in fetches(path))]
    lines = []
    if images:
        lines.append(f"{len(images)} of {len(tasks)} tasks pull a prebuilt image, such as {images[0]}")
    if fetching:
        lines.append(f"{len(fetching)} of {len(tasks)} verifiers install something from the network")
    return lines


def _prebuilt(task: Path) -> str:
    try:
        return str(tomllib.loads((task / "task.toml").read_text()).get("environment", {}).get("docker_image") or "")
    except (OSError, ValueError):
        return ""
