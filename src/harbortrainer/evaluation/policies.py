"""The policies of an evaluation: finds each one (base model or saved weights) and makes its sampler."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chz

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.contract import CALL_LIMIT_SEC
from harbortrainer.backend.policy import PolicyTrainer, Published, about_state
from harbortrainer.cli.secrets import secrets_of
from harbortrainer.config import Config
from harbortrainer.durable.files import read_json
from harbortrainer.errors import UserError, refuse
from harbortrainer.model_file import model_of, text_of
from harbortrainer.other_models.remote_policy import address
from harbortrainer.policy.chat_template import Renderer
from harbortrainer.run.checkpoints import check_base, find_checkpoint
from harbortrainer.run.directory import RunDirectory, open_run_directory

BASE, ORACLE = "base", "oracle"
SAMPLER_WEIGHTS = "/sampler_weights/"


@dataclass(frozen=True, slots=True)
class Subject:
    """A policy to evaluate. `path`: tinker:// path of its weights, None = the base model; `run`: its run directory."""

    name: str
    model_name: str | None = None  # None = the server knows it
    path: str | None = None
    run: str | None = None
    renderer: Renderer | None = None
    endpoint: dict[str, Any] | None = None  # the object of its file, where it is behind an endpoint

    @property
    def needs_server(self) -> bool:
        """Whether a Tinker API samples it."""
        return not self.is_oracle and self.endpoint is None

    @property
    def is_oracle(self) -> bool:
        """Whether it is no weights, but each task's own solution."""
        return self.name == ORACLE and self.path is None and self.endpoint is None


def find_subject(field: str, value: str | None) -> Subject:
    """`value`: None or base, oracle, a tinker:// path, RUN_DIR, RUN_DIR@STEP, or FILE.json of a policy behind an
    endpoint. Raises UserError.
    """
    if value is None or value in (BASE, ORACLE):
        return Subject(value or BASE)
    if value.startswith("tinker://"):
        return Subject(value.removeprefix("tinker://"), path=value)
    if field == "policy" or (value.endswith(".json") and Path(value).expanduser().is_file()):
        text = text_of("policy", value) or ""
        if (model := model_of("policy", text)) is not None:
            refuse(secrets_of("policy", model))
            _ = address(model).token  # set
            return Subject(model.model, endpoint=json.loads(text))
    run, checkpoint = find_checkpoint(field, value)
    renderer = Renderer(checkpoint.renderer, checkpoint.thinking)
    return Subject(f"{run.name}@{checkpoint.step}", checkpoint.model_name, checkpoint.path, str(run.path), renderer)


def common_model(subjects: list[Subject], model_name: str | None) -> str:
    """Return the base model that all subjects share. Raises UserError when none is known, or several are."""
    names = {subject.model_name for subject in subjects} - {None} | ({model_name} if model_name else set())
    if len(names) != 1:
        found = ", ".join(sorted(map(str, names))) or "none is known"
        raise UserError(f"model_name={model_name}: the policies need one base model ({found}); give model_name=NAME")
    return str(names.pop())


def check_renderer(subject: Subject, renderer: Renderer) -> None:
    """Raises UserError when prompts would be rendered otherwise than in training: the weights would answer worse."""
    if subject.renderer is not None and subject.renderer != renderer:
        trained, now = subject.renderer, renderer
        raise UserError(
            f"checkpoint={subject.name}: trained with {trained.name} and thinking {trained.thinking}, now it would be "
            f"{now.name} and {now.thinking}; set enable_thinking and tool_format as in training, with the same "
            "model_name"
        )


def refuse_elsewhere(subject: Subject, backend: str) -> None:
    """Raises UserError when the run saved its weights at another backend, or is gone since the evaluation began."""
    run = open_run_directory(subject.run, "checkpoint=") if subject.run else None
    theirs = backend if run is None else read_json(run.config).get("backend", backend)
    if theirs != backend:
        how = f"backend={theirs}" + (" skyrl_tx_url=URL" if theirs == "skyrl-tx" else "")
        raise UserError(f"backend={backend}: the weights of {subject.name} are on backend={theirs}; give {how}")


def from_json(saved: dict[str, Any]) -> Subject:
    """Return a subject from its `asdict`."""
    renderer = Renderer(**saved["renderer"]) if saved["renderer"] else None
    run, endpoint = saved["run"], saved.get("endpoint")
    return Subject(saved["name"], saved["model_name"], saved["path"], run, renderer, endpoint)


@contextlib.asynccontextmanager
async def sampled(subject: Subject, backend: Backend, config: Config) -> AsyncIterator[Published]:
    """Yield a sampler of the policy, freed on the server when the block ends.

    A training state is restored into a new adapter and published from there; weights saved for sampling are sampled
    directly. Raises UserError, WeightsGone when the server does not have them, BackendError.
    """
    if subject.run is not None:
        check_base(RunDirectory(Path(subject.run)), f"checkpoint={subject.name}", backend.about)
    if subject.path is None or SAMPLER_WEIGHTS in subject.path:
        base = config.model_name if subject.path is None else None
        work = backend.service.create_sampling_client(model_path=subject.path, base_model=base)
        yield Published(await backend.wait(f"creating the sampling client of {subject.name}", work, CALL_LIMIT_SEC))
        return
    reading = backend.rest.get_weights_info_by_tinker_path(subject.path)
    info = await about_state(backend, f"{subject.name}: reading {subject.path}", reading, CALL_LIMIT_SEC)
    config = chz.replace(config, lora_rank=info.lora_rank or config.lora_rank)
    policy = await PolicyTrainer.restore(backend, config, subject.path)
    try:
        yield await policy.publish(0)
    finally:
        await policy.saved.delete_others(policy.model_id, ())
        await policy.close()
