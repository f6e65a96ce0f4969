"""One recipe of the cookbook, interrupted and resumed: loop.py PYTHON URL RECIPE FOLDER [--straight] [key=value ...]

PYTHON: interpreter that has tinker_cookbook. The first invocation is killed once it has saved a checkpoint and logged
the batch after it; the second, with the same arguments, resumes from it (--straight: one invocation, not killed). Then
the recipe's own metrics are read, and what is missing in them makes the exit status 1. FOLDER holds data/ (see
make_hub.py); the recipe's log goes to FOLDER/RECIPE. Runs on any Python >= 3.11, needs no package.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

BATCHES = 12
DEFAULTS: dict[str, dict[str, str]] = {
    "rl_loop": {
        "batch_size": "4",
        "group_size": "8",
        "max_tokens": "8",
        "learning_rate": "3e-4",
        "loss_fn": "importance_sampling",  # the default, stable_reinforce, is no loss of the self-hosted server
    },
    "sl_loop": {"batch_size": "8", "learning_rate": "1e-2", "max_length": "256"},
}
COMMON = {"model_name": "Qwen/Qwen3-8B", "lora_rank": "8", "save_every": "4", "max_steps": str(BATCHES)}
POLL_SEC = 0.1
STRAIGHT = "--straight"
TRIES = 3


class Broken(Exception):
    """A recipe that did not do what is asked of it; the text is for a person."""


@dataclass(frozen=True)
class Recipe:
    """Where one recipe runs and what it is given."""

    python: str
    name: str
    folder: Path
    settings: dict[str, str]

    @property
    def log_path(self) -> Path:
        return self.folder / self.name

    def start(self, output: TextIO, **changes: str) -> subprocess.Popen[bytes]:
        """The published module itself, in the folder where its data lies."""
        arguments = [f"{key}={value}" for key, value in (self.settings | changes).items()]
        command = [self.python, "-m", f"tinker_cookbook.recipes.{self.name}", *arguments]
        environment = os.environ | {"HF_DATASETS_CACHE": str(self.folder / "datasets-cache")}
        return subprocess.Popen(
            command, cwd=self.folder / "data", env=environment, stdout=output, stderr=subprocess.STDOUT
        )

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Whole lines of a JSONL file of the recipe's; none while there is no such file."""
        path = self.log_path / name
        text = path.read_text() if path.is_file() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def saved(self) -> int | None:
        """The batch before which the last checkpoint was saved."""
        rows = self.rows("checkpoints.jsonl")
        return rows[-1]["batch"] if rows else None

    def steps(self) -> list[int]:
        """The batches in its metrics, in the order in which they were logged."""
        key = "progress/batch" if self.name == "rl_loop" else "step"
        return [int(row[key]) for row in self.rows("metrics.jsonl")]


def interrupt(recipe: Recipe, output: TextIO) -> int:
    """Kills a first invocation after its first checkpoint and a batch more; returns the last checkpoint's batch.

    It is not told max_steps, so that it cannot come to its end before it is killed. Should the batch
    after its last checkpoint not be logged by then, or nothing be left for the second invocation, it is started afresh.
    """
    for _ in range(TRIES):
        shutil.rmtree(recipe.log_path, ignore_errors=True)
        kill_after_checkpoint(recipe, output)
        saved = recipe.saved()
        if saved in recipe.steps() and saved is not None and saved < int(recipe.settings["max_steps"]):
            return saved
    raise Broken(f"{TRIES} times it could not be killed between the first checkpoint and max_steps")


def kill_after_checkpoint(recipe: Recipe, output: TextIO) -> None:
    process = recipe.start(output, max_steps="None")
    try:
        while process.poll() is None:
            if recipe.saved() in recipe.steps():
                return
            time.sleep(POLL_SEC)
        raise Broken(f"it ended with status {process.returncode} before a checkpoint and a batch after it were there")
    finally:
        process.kill()
        process.wait()


def finish(recipe: Recipe, output: TextIO) -> None:
    """An invocation that comes to its end."""
    status = recipe.start(output).wait()
    if status != 0:
        raise Broken(f"it ended with status {status}")


def check_both(before: list[dict[str, Any]], after: list[dict[str, Any]], steps: list[int], saved: int) -> None:
    if not after or steps[len(before)] != saved:
        raise Broken(f"the second invocation did not go on at batch {saved}; batches logged: {steps}")


def check_rl(rows: list[dict[str, Any]], wanted: int) -> str:
    """Training calls are counted by what only the optimizer's answer brings into the recipe's metrics."""
    trained = [row for row in rows if any(key.endswith("grad_norm") for key in row)]
    if len(trained) < wanted:
        raise Broken(f"it trained in {len(trained)} batches, not {wanted}: the other groups' rewards were all alike")
    rewards = [row["reward/total"] for row in rows]
    third = max(1, len(rewards) // 3)
    means = [sum(part) / third for part in (rewards[:third], rewards[-third:])]
    return f"trained in {len(trained)} of {len(rows)} batches; reward {means[0]:.3f} -> {means[1]:.3f} (thirds)"


def check_sl(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    """The loss falls, and the batches that both invocations did have the same loss."""
    first = {row["step"]: row["train_mean_nll"] for row in before}
    twice = [(first[row["step"]], row["train_mean_nll"]) for row in after if row["step"] in first]
    apart = max((abs(one - other) for one, other in twice), default=0.0)
    if apart > 1e-3:
        raise Broken(f"the resumed run's losses differ from the first run's by {apart:.4g} on the same batches")
    start, end = (before or after)[0]["train_mean_nll"], after[-1]["train_mean_nll"]
    if not end < start:
        raise Broken(f"the loss did not fall: {start:.4f} -> {end:.4f}")
    return f"loss {start:.4f} -> {end:.4f}; {len(twice)} batches done twice, losses apart by at most {apart:.2g}"


def run(recipe: Recipe, straight: bool, output: TextIO) -> str:
    """The invocations and the checks; returns what a person should read."""
    if straight:
        shutil.rmtree(recipe.log_path, ignore_errors=True)
        finish(recipe, output)
        return f"in one go; {check(recipe, [])}"
    saved = interrupt(recipe, output)
    before = recipe.rows("metrics.jsonl")
    finish(recipe, output)
    check_both(before, recipe.rows("metrics.jsonl")[len(before) :], recipe.steps(), saved)
    return f"killed after {recipe.steps()[len(before) - 1]}, resumed at {saved}; {check(recipe, before)}"


def check(recipe: Recipe, before: list[dict[str, Any]]) -> str:
    """`before`: the rows of an invocation that was killed."""
    rows, steps = recipe.rows("metrics.jsonl"), recipe.steps()
    batches = int(recipe.settings["max_steps"])
    if sorted(set(steps)) != list(range(batches)):
        raise Broken(f"batches logged: {steps}, not 0 to {batches - 1}")
    last = dict(zip(steps, rows, strict=True))
    if recipe.name == "rl_loop":
        return check_rl(list(last.values()), batches * 3 // 4)
    return check_sl(before, rows[len(before) :])


def main() -> None:
    python, url, name, folder, *arguments = sys.argv[1:]
    straight = STRAIGHT in arguments
    given = dict(argument.split("=", 1) for argument in arguments if argument != STRAIGHT)
    settings = COMMON | DEFAULTS[name] | given
    recipe = Recipe(python, name, Path(folder).resolve(), settings)
    recipe.settings.update(base_url=url, log_path=str(recipe.log_path))
    log = recipe.folder / f"{name}.log"
    with log.open("w") as output:
        try:
            print(f"{name}: {settings['max_steps']} batches, {run(recipe, straight, output)}")
        except Broken as error:
            output.flush()
            tail = "\n".join(log.read_text().splitlines()[-15:])
            sys.exit(f"{tail}\nerror: {name}: {error}; its whole output: {log}")


if __name__ == "__main__":
    main()
