"""Recipes of the cookbook, unmodified, each to its end.

python -m scripts.cookbook.run FOLDER PYTHON [--write] [NAME ...]

PYTHON: interpreter that has tinker_cookbook. FOLDER holds data/ and hub/ (make_hub.py); logs and what the recipes write
go there. Servers are started and stopped, one for each model that recipes name, unless SKYRL_TX_URL names one, and JOBS
recipes (1) run at once. A recipe must take all its steps and save its last checkpoint; the server must have logged no
error of its own. What a recipe did is kept in FOLDER/results.json; --write puts it into the table of bench/RESULTS.md.
Runs in the trainer's environment.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.cookbook.recipes import RECIPES, WRITE, Recipe, chosen

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "bench" / "RESULTS.md"
BEGIN, END = "<!-- recipes: written by scripts/run_cookbook_recipes.sh --write -->\n", "<!-- /recipes -->\n"
LIMIT_SEC = 1800
SHOWN = {
    "train_mean_nll": "loss",
    "train/loss": "loss",
    "dpo_loss": "loss",
    "env/all/reward/total": "reward",
    "teacher_kl": "KL",
}
SHOWN |= {"skyrl.ai/grad_norm": "gradient"}  # of the last step
TRAINING = ("grad_norm", "surrogate_loss:sum", "target_prob:mean")  # the optimizer's; of losses of the client's
KEPT = threading.Lock()  # of results.json
FAULTS = re.compile(r"Traceback|Cleaning up failed| ERROR ")


class Broken(Exception):
    """A recipe that did not do what is asked of it; the text is for a person."""


@dataclass(frozen=True)
class Place:
    """Where recipes run, and with what."""

    folder: Path
    python: str

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def results(self) -> Path:
        return self.folder / "results.json"

    def log(self, recipe: Recipe) -> Path:
        return self.folder / f"{recipe.name}.log"

    def outputs(self, recipe: Recipe) -> list[Path]:
        """Folders with the recipe's metrics, or the one file that it makes."""
        own = recipe.logs or (f"logs/{recipe.name}",)
        return [self.runs / name for name in ((recipe.makes,) if recipe.makes else own)]

    def command(self, recipe: Recipe) -> list[str]:
        own = recipe.module.startswith(".")
        module = f"scripts.cookbook{recipe.module}" if own else f"tinker_cookbook.recipes.{recipe.module}"
        settings = [*recipe.settings]
        if recipe.model_field:
            settings.append(f"{recipe.model_field}={recipe.model}")
        if not recipe.makes:
            settings.append(f"max_steps={recipe.steps}")
        if not (recipe.makes or recipe.logs):
            settings.append(f"log_path={self.outputs(recipe)[0]}")
        return [self.python, "-m", module, *([recipe.name] if own else []), *settings]

    def environment(self, url: str) -> dict[str, str]:
        mine = {"TINKER_BASE_URL": url, "TINKER_COOKBOOK_RUNS_DIR": self.runs, "PYTHONPATH": ROOT}
        mine |= {"HF_DATASETS_CACHE": self.folder / "datasets-cache"}
        return os.environ | {name: str(value) for name, value in mine.items()}


def numbers(folder: Path, steps: int) -> str:
    """What a recipe logged at its last step. Raises Broken unless it trained `steps` times and saved the end."""
    path = folder / "metrics.jsonl"
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    trained = [row for row in rows if any(name.endswith(TRAINING) for name in row)]
    if len(trained) < steps:
        raise Broken(f"{folder.name}: it trained {len(trained)} times, not {steps}")
    saved = folder / "checkpoints.jsonl"
    if not saved.is_file() or '"final"' not in saved.read_text():
        raise Broken(f"{folder.name}: no final checkpoint")
    last = trained[-1]
    shown = {name: last[key] for key, name in SHOWN.items() if key in last}
    return ", ".join([f"{len(trained)} steps", *(f"{name} {value:.3g}" for name, value in shown.items())])


def run(recipe: Recipe, place: Place, url: str) -> tuple[str, float]:
    """What it did, and its seconds. Raises Broken."""
    for path in place.outputs(recipe):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    began = time.monotonic()
    with place.log(recipe).open("w") as output:
        done = subprocess.run(
            place.command(recipe),
            cwd=place.folder / "data",
            env=place.environment(url),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_SEC,
            check=False,
        )
    seconds = time.monotonic() - began
    if recipe.fault and recipe.says in place.log(recipe).read_text():
        return f"the cookbook's fault: {recipe.fault}", seconds
    if done.returncode != 0 or recipe.fault:
        raise Broken(f"it ended with status {done.returncode}")
    if recipe.makes:
        return f"{len((place.runs / recipe.makes).read_text().splitlines())} rows", seconds
    return "; ".join(numbers(path, recipe.steps) for path in place.outputs(recipe)), seconds


def tried(recipe: Recipe, place: Place, url: str) -> bool:
    """`run`, its line printed; False where it is broken."""
    try:
        result, seconds = run(recipe, place, url)
    except (Broken, subprocess.TimeoutExpired) as error:
        tail = "\n".join(place.log(recipe).read_text().splitlines()[-15:])
        print(f"{tail}\nerror: {recipe.name}: {error}; its whole output: {place.log(recipe)}", flush=True)
        return False
    print(f"{recipe.name}: {result}; {seconds:.0f} s", flush=True)
    with KEPT:
        place.results.write_text(json.dumps(kept(place) | {recipe.name: (result, seconds)}, indent=1))
    return True


def kept(place: Place) -> dict[str, tuple[str, float]]:
    """What recipes did when they last came to their end, and its seconds."""
    return json.loads(place.results.read_text()) if place.results.is_file() else {}


@contextlib.contextmanager
def server(model: str, place: Place) -> Iterator[str]:
    """URL of a server of `model` for the block. Raises Broken at its end where it has logged an error of its own."""
    if url := os.environ.get("SKYRL_TX_URL"):
        yield url
        return
    state, port = place.folder / "server", os.environ["SKYRL_TX_PORT"]
    environment = os.environ | {"SKYRL_TX_STATE": str(state), "FRESH": "1"}
    environment.setdefault("MAX_LORA_RANK", "128")  # sdft's default
    subprocess.run(["scripts/start_skyrl_tx.sh", "--background", model, "1"], cwd=ROOT, env=environment, check=True)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run(["scripts/stop_skyrl_tx.sh", port], cwd=ROOT, env=environment, check=True)
    log = state / "server.log"
    if faults := [line for line in log.read_text().splitlines() if FAULTS.search(line)]:
        raise Broken("\n".join([f"the server of {model} logged errors ({log}):", *faults[:8]]))


def table(results: Mapping[str, tuple[str, float]]) -> str:
    lines = ["| recipe | given, beside its model and `max_steps` | did | s |", "| --- | --- | --- | --- |"]
    for recipe in RECIPES.values():
        name = recipe.name if recipe.module.startswith(".") else recipe.module
        given = f"`{' '.join(recipe.settings)}`" if recipe.settings else ""
        result, seconds = results.get(recipe.name, ("not run", 0.0))
        lines.append(f"| {recipe.name}: `{name}` | {given} | {result} | {seconds:.0f} |")
    return "\n".join([*lines, ""])


def main() -> None:
    folder, python, *arguments = sys.argv[1:]
    place, recipes = Place(Path(folder).resolve(), python), chosen(arguments)
    fine = True
    for model in dict.fromkeys(recipe.model for recipe in recipes):
        with server(model, place) as url, ThreadPoolExecutor(int(os.environ.get("JOBS", "1"))) as pool:
            here = [one for one in recipes if one.model == model]
            for together in ([one for one in here if one.makes], [one for one in here if not one.makes]):  # data first
                fine &= all([*pool.map(lambda one: tried(one, place, url), together)])
    if WRITE in arguments:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table(kept(place))}\n{END}{rest.partition(END)[2]}")
    sys.exit(not fine)


if __name__ == "__main__":
    try:
        main()
    except Broken as error:
        sys.exit(f"error: {error}")
