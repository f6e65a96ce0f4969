"""What a hub would give the recipes, made on this machine: python -m scripts.cookbook.make_hub FOLDER

FOLDER/data: data sets, as local folders for a recipe that runs there. FOLDER/hub: a cache (HF_HOME) that holds the
policies under names of the hub, for server and recipe; the cookbook knows renderers by the hub's names only. With the
recipes' environment in FOLDER/venv, the players are made too, and the cookbook's example data lies in FOLDER/data.
"""

import shutil
import sys
from pathlib import Path

from scripts.cookbook.data import write_data, write_tasks
from scripts.cookbook.policy import COMMAND, write_policy

GUESSER, PLAYERS = "Qwen/Qwen3-8B", ("Qwen/Qwen3.5-9B", "Qwen/Qwen3.6-35B-A3B")  # rl_loop's; every other recipe's
COMMIT = "0" * 40
EVERY = 40  # of 2,100 sentences that one recipe classifies, one is kept


def cache_folder(home: Path, model: str) -> Path:
    """Where a hub cache keeps the one revision of `model`; its reference "main" is written."""
    root = home / "hub" / f"models--{model.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    return root / "snapshots" / COMMIT


def main(folder: Path) -> None:
    shutil.rmtree(folder / "data", ignore_errors=True)
    shutil.rmtree(folder / "hub", ignore_errors=True)
    texts = write_data(folder / "data")
    write_tasks(folder / "data" / "tasks", COMMAND, "grep -qx done /app/done.txt")
    write_policy(cache_folder(folder / "hub", GUESSER), texts)
    cookbook = next(folder.glob("venv/lib/*/site-packages/tinker_cookbook"), None)
    if cookbook is None:
        return
    examples = "tinker_cookbook/example_data"  # where two recipes look, from the folder that they run in
    shutil.copytree(cookbook / "example_data", folder / "data" / examples)
    sentences = folder / "data" / examples / "multilingual.txt"
    sentences.write_text("".join(sentences.read_text().splitlines(keepends=True)[::EVERY]))
    prompts = [path.read_text() for path in sorted(cookbook.glob("recipes/**/*.py"))]  # short, once they are learnt
    for name in PLAYERS:
        write_policy(cache_folder(folder / "hub", name), [*texts, *prompts], plays=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
