"""The model card of exported weights: what they were trained on, how, and what was measured."""

import json
from collections.abc import Iterator
from pathlib import Path

from harbortrainer.config import ServerSettings
from harbortrainer.durable.files import read_json, read_value
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.evaluation.policies import Subject
from harbortrainer.run.directory import DATASET_FILE, RunDirectory
from harbortrainer.setting import settings
from harbortrainer.tasks.sources import SOURCES_FILE

_LOCAL = {
    *settings(ServerSettings),
    "logs_dir",
    "run_name",
    "resume",
    "wandb_project",
    "wandb_name",
    "agents_dir",
    "prices",
}


def card(subject: Subject, model_name: str, *, merged: bool = False) -> str:
    """Return Markdown. Data, settings and intervals come from the run's directory; of a bare path none are known."""
    library, what = ("transformers", "A model") if merged else ("peft", "A LoRA adapter")
    lines = ["---", f"base_model: {model_name}", f"library_name: {library}", "pipeline_tag: text-generation", "---"]
    lines += [f"# {what} of {Path(model_name).name}, trained with harbortrainer", "", f"`{subject.name}`"]
    if subject.run is not None:
        run = RunDirectory(Path(subject.run))
        config = {name: value for name, value in read_json(run.config).items() if _matters(name)}
        lines += ["", "## Data", "", *_data(run), "", "## Measured", "", _measured(run, subject.name)]
        lines += ["", "## Settings", "", "```json", json.dumps(config, indent=1), "```"]
    return "\n".join(lines) + "\n"


def _data(run: RunDirectory) -> Iterator[str]:
    for file in (SOURCES_FILE, DATASET_FILE):  # tasks and where they come from; of fine-tuning the conversations' tasks
        if (run.path / file).is_file():
            yield f"```json\n{json.dumps(read_value(run.path / file), indent=1)}\n```"


def _measured(run: RunDirectory, name: str) -> str:
    """The newest evaluation up to the checkpoint's step, with its 95 % interval."""
    step = int(name.rpartition("@")[2])
    rows = [row for row in read_lines(run.metrics) if "eval/reward_mean" in row and row["global_step"] <= step]
    if not rows:
        return "No evaluation of held-out tasks is recorded."
    mean, low, high = (rows[-1].get(f"eval/reward_{part}", float("nan")) for part in ("mean", "low", "high"))
    return (
        f"Mean reward of {rows[-1].get('eval/tasks', 0):g} held-out tasks after step {rows[-1]['global_step']}: "
        f"{mean:.3f} (95 % interval {low:.3f} to {high:.3f})."
    )


def _matters(name: str) -> bool:
    """Whether a setting means something elsewhere: it is no address and no name of this machine."""
    return name not in _LOCAL and not name.endswith(("_url", "_key"))
