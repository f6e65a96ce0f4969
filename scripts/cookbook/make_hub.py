"""What a hub would give the recipes, made on this machine: python -m scripts.cookbook.make_hub FOLDER

FOLDER/data: data sets, as local folders for a recipe that runs there. FOLDER/hub: a cache (HF_HOME) that holds the
guessing policy under the name MODEL, for server and recipe; the cookbook knows renderers by the hub's names only.
"""

import shutil
import sys
from pathlib import Path

from scripts.cookbook.data import write_data
from scripts.cookbook.policy import write_policy

MODEL = "Qwen/Qwen3-8B"
COMMIT = "0" * 40


def cache_folder(home: Path, model: str) -> Path:
    """Where a hub cache keeps the one revision of `model`; its reference "main" is written."""
    root = home / "hub" / f"models--{model.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    return root / "snapshots" / COMMIT


def main(folder: Path) -> None:
    shutil.rmtree(folder / "data", ignore_errors=True)
    shutil.rmtree(folder / "hub", ignore_errors=True)
    texts = write_data(folder / "data", problems=160, chats=320)
    write_policy(cache_folder(folder / "hub", MODEL), texts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
