"""What a run starts from instead of its seed: finds a saved state and checks it before anything is spent."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harbortrainer.backend.adapter import CONFIG as ADAPTER
from harbortrainer.backend.adapter import adapter_path, read_adapter
from harbortrainer.backend.policy import SavedState
from harbortrainer.config import Config, RunSettings
from harbortrainer.durable.files import read_json
from harbortrainer.errors import UserError
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.run.checkpoints import PolicyIdentity, check_identity, find_checkpoint
from harbortrainer.run.directory import DATASET_FILE, RunDirectory
from harbortrainer.tasks.split import SPLIT_FILE, check_held_out
from harbortrainer.tasks.task import Task

SERVER = "tinker://"
STATE = re.compile(r"tinker://[^/]+/weights/[^/]+")
IDENTITY = "harbortrainer.json"  # in an adapter's folder that `export` wrote: a PolicyIdentity
KEY, TEACHERS = "start", "kl_references"  # in effective.json
BASE, START = "base", "start"  # values of kl_reference


def identity(config: RunSettings, template: ChatTemplate) -> PolicyIdentity:
    """Return the policy that a run with these settings trains."""
    return PolicyIdentity(config.model_name, config.lora_rank, template.renderer.name, template.renderer.thinking)


def find_start(
    init_from: str | None, wanted: PolicyIdentity, backend: str, earlier: RunDirectory | None = None
) -> SavedState | None:
    """Return the state that a run starts from; None = its seed. A continued run keeps the state that it has recorded.

    `earlier`: the directory of the continued run. Raises UserError.
    """
    if earlier is not None and earlier.effective.exists():
        state: dict[str, Any] | None = read_json(earlier.effective).get(KEY)
        return None if state is None else SavedState(**state)
    if init_from is None:
        return None
    return find_state("init_from", init_from, wanted, backend)


def find_teachers(config: Config, wanted: PolicyIdentity, earlier: RunDirectory | None = None) -> dict[str, SavedState]:
    """Get the states that kl_reference names now, and has named in this run: recorded ones stay. Raises UserError."""
    teachers: dict[str, SavedState] = {}
    if earlier is not None and earlier.effective.exists():
        teachers = {name: SavedState(**state) for name, state in read_json(earlier.effective).get(TEACHERS, {}).items()}
    name = config.kl_reference
    if config.kl_penalty_coef and name not in (BASE, START, *teachers):
        teachers[name] = find_state("kl_reference", name, wanted, config.backend, any_rank=True)
    return teachers


def find_state(field: str, value: str, wanted: PolicyIdentity, backend: str, *, any_rank: bool = False) -> SavedState:
    """Get the training state that `field` names: RUN_DIR, RUN_DIR@STEP, a tinker:// path or the folder of an adapter.

    Contacts no server. A run directory's state is compared with `wanted`, an adapter as far as its files say. Base
    model and rank of a path are checked at the server; its chat template is recorded nowhere. Raises UserError.
    """
    given = f"{field}={value}"
    if value.startswith(SERVER):
        if STATE.fullmatch(value) is None:
            raise UserError(
                f"{given}: not the path of a training state (tinker://MODEL/weights/NAME); weights saved for sampling "
                "cannot be trained: take a path from checkpoints.jsonl"
            )
        return SavedState(given, value)
    if (Path(value).expanduser() / ADAPTER).is_file():
        if backend == "tinker":
            why = "Tinker's API takes no adapter; give RUN_DIR or a tinker:// path, or train with backend=skyrl-tx"
            raise UserError(f"{given}: {why}")
        return _of_adapter(given, Path(value).expanduser().resolve(), wanted, any_rank=any_rank)
    run, checkpoint = find_checkpoint(field, value)
    policy = replace(wanted, lora_rank=checkpoint.lora_rank) if any_rank else wanted
    check_identity(checkpoint, policy, given, "give other weights")
    theirs = read_json(run.config).get("backend", backend)
    if theirs != backend:
        raise UserError(f"{given}: its weights are on backend={theirs}; set backend={theirs} or give other weights")
    return SavedState(given, checkpoint.path, str(run.path), checkpoint.step)


def _of_adapter(given: str, folder: Path, wanted: PolicyIdentity, *, any_rank: bool) -> SavedState:
    """Raises UserError when the adapter is of another model, rank or chat template, as far as its files say."""
    config = read_adapter(given, folder)
    base = str(config.get("base_model_name_or_path") or wanted.model_name)
    if Path(base).name != Path(wanted.model_name).name:
        raise UserError(
            f"model_name={wanted.model_name}: {given} is an adapter of {base}; give that model, or correct "
            f"base_model_name_or_path in {folder / ADAPTER}"
        )
    policy = replace(wanted, lora_rank=config["r"])
    if (file := folder / IDENTITY).is_file():
        said = read_json(file, "renderer", "thinking")
        policy = replace(policy, renderer=said["renderer"], thinking=said["thinking"])
    check_identity(policy, replace(wanted, lora_rank=config["r"]) if any_rank else wanted, given, "give other weights")
    return SavedState(given, adapter_path(folder), str(folder), folder=str(folder))


def check_unseen(start: SavedState, held_out: Sequence[Task], allow_family_overlap: bool) -> None:
    """Raises UserError when the run that saved the weights, or one before it, was trained on a held-out family."""
    folder = start.run
    while folder is not None:
        run = RunDirectory(Path(folder))
        if (split := run.path / SPLIT_FILE).exists() and held_out:
            check_held_out(read_json(split, "train"), held_out, start.given, allow_family_overlap)
        if (data := run.path / DATASET_FILE).exists():
            _check_conversations(read_json(data, "tasks")["tasks"], held_out, start.given)
        state = read_json(run.effective).get(KEY) if run.effective.exists() else None
        folder = None if state is None else state["run"]


def _check_conversations(taught: Collection[str], held_out: Sequence[Task], given: str) -> None:
    """Raises UserError when fine-tuning has seen conversations of a held-out task."""
    if seen := sorted({task.name for task in held_out} & {*taught}):
        raise UserError(
            f"{given}: was trained on conversations of {', '.join(seen[:3])}{', ...' if seen[3:] else ''}, which "
            "this run holds out; hold out other tasks, or start from other weights"
        )


def recorded(start: SavedState | None, teachers: Mapping[str, SavedState]) -> dict[str, Any]:
    """Return the part of effective.json from which a continued run reads them again."""
    states = {name: asdict(state) for name, state in teachers.items()}
    return {KEY: None if start is None else asdict(start), TEACHERS: states}


def described(start: SavedState) -> str:
    """Return one line."""
    return f"starts from {start.described}, {'with its' if start.optimizer else 'with fresh'} Adam moments"
