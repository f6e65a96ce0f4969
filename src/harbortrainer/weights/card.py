"""The model card of exported weights: what they were trained on, how, and what was measured."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harbortrainer.config import Endpoint
from harbortrainer.durable.files import read_json, read_value
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.evaluation.policies import Subject
from harbortrainer.run.directory import DATASET_FILE, RunDirectory
from harbortrainer.setting import settings
from harbortrainer.tasks.sources import SOURCES_FILE
from harbortrainer.tasks.split import SPLIT_FILE

_LOCAL = {*settings(Endpoint), "logs_dir", "run_name", "resume", "wandb_project", "wandb_name", "agents_dir", "prices"}


def card(subject: Subject, model_name: str, *, merged: bool) -> str:
    """Markdown. Data, settings and intervals come from the run's directory; of a bare path none are known."""
    kind = "the whole model, merged" if merged else "a LoRA adapter (PEFT)"
    lines = [
        "---",
        f"base_model: {model_name}",
        f"library_name: {'transformers' if merged else 'peft'}",
        "pipeline_tag: text-generation",
        "---",
        f"# {Path(model_name).name}, trained with harbortrainer",
        "",
        f"This folder holds {kind} of `{subject.name}`, with its tokenizer and chat template.",
    ]
    if subject.run is not None:
        run = RunDirectory(Path(subject.run))
        lines += ["", "## Data", "", *_data(run), "", "## Measured", "", *_measured(run, subject.name)]
        lines += ["", "## Settings", "", "```json", json.dumps(_shown(read_json(run.config)), indent=1), "```"]
    return "\n".join(lines) + "\n"


def _data(run: RunDirectory) -> Iterator[str]:
    if (file := run.path / SOURCES_FILE).is_file():
        for source in read_value(file):
            about = ", ".join(f"{name} {value}" for name, value in source.items() if value not in (None, "", 1.0))
            yield f"- tasks: {about}"
    if (file := run.path / SPLIT_FILE).is_file():
        split = read_json(file)
        yield f"- {len(split.get('train', ()))} tasks of training; held out: {len(split.get('held_out', ()))}"
    if (file := run.path / DATASET_FILE).is_file():
        yield f"- conversations of {len(read_json(file, 'tasks')['tasks'])} tasks"


def _measured(run: RunDirectory, name: str) -> Iterator[str]:
    """The newest evaluation up to the checkpoint's step, with its 95 % interval."""
    step = int(name.rpartition("@")[2])
    rows = [row for row in read_lines(run.metrics) if "eval/reward_mean" in row and row["global_step"] <= step]
    if not rows:
        yield "No evaluation of held-out tasks is recorded."
        return
    row = rows[-1]
    mean, low, high = (row.get(f"eval/reward_{part}", float("nan")) for part in ("mean", "low", "high"))
    yield (
        f"Mean reward of {row.get('eval/tasks', 0):g} held-out tasks after step {row['global_step']}: {mean:.3f} "
        f"(95 % interval {low:.3f} to {high:.3f})."
    )


def _shown(config: dict[str, Any]) -> dict[str, Any]:
    """Settings that matter elsewhere: no addresses, no names of this machine."""
    left_out = {name for name in config if name in _LOCAL or name.endswith(("_url", "_key"))}
    return {name: value for name, value in config.items() if name not in left_out}
